#include "cli/llm/llm_comparison_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cli/llm/llm_text.h"
#include "cli/terminal/text.h"
#include "costmodel/execution/execution_fields.h"
#include "graph/base/byte_size.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::ComparedStrategy;
using costmodel::Ratio;
using costmodel::StrategyFigures;
using Strategies = std::span<const ComparedStrategy>;

constexpr size_t kGap = 2;

// A row of all strategies: their cells are of one width, ratios included.
struct Row {
  std::string label;
  std::vector<std::string> cells;
};

std::string Bytes(double bytes) { return graph::FormatManyBytes(bytes); }

std::string Percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

std::string RatioText(double ratio) {
  if (std::isnan(ratio)) return "";
  return fmt::format("×{:.{}f}", ratio, ratio < 100 ? 2 : 0);
}

std::string FieldText(const costmodel::ExecutionField& field) {
  if (const bool* flag = std::get_if<bool>(&field)) {
    return *flag ? "true" : "false";
  }
  if (const int64_t* number = std::get_if<int64_t>(&field)) {
    return FormatCount(*number);
  }
  return std::string(std::get<std::string_view>(field));
}

// The rows, in order.
class Rows {
 public:
  explicit Rows(Strategies all) : all_(all) {}

  void AddSection(std::string_view label) {
    section_ = {std::string(label), std::vector<std::string>(all_.size())};
  }

  void AddWords(std::string_view label, std::vector<std::string> words) {
    for (size_t i = 1; i < words.size(); ++i) words[i] = Ratioed(words[i], "");
    Push(label, std::move(words));
  }

  // `format` of a number, and its ratio to the first strategy's.
  template <typename Format>
  void Add(std::string_view label, double StrategyFigures::*value,
           Format format) {
    const auto number = [value](const StrategyFigures& figures) {
      return figures.*value;
    };
    const double base = number(all_.front().figures);
    AddNumbers(label, number, format,
               [base](double other) { return RatioText(Ratio(other, base)); });
  }
  // Without the ratio.
  template <typename Number, typename Format>
  void AddPlain(std::string_view label, Number number, Format format) {
    AddNumbers(label, number, format, [](double) { return ""; });
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  static std::string Ratioed(const std::string& text,
                             const std::string& ratio) {
    return fmt::format("{}{:>7}", text, ratio);
  }

  template <typename Number, typename Format, typename ToRatio>
  void AddNumbers(std::string_view label, Number number, Format format,
                  ToRatio ratio) {
    std::vector<std::string> cells;
    bool has_any = false;
    for (const ComparedStrategy& one : all_) {
      const double value = number(one.figures);
      has_any = has_any || (!std::isnan(value) && value != 0);
      const std::string text = std::isnan(value) ? "-"
                               : value == 0      ? "0"
                                                 : format(value);
      cells.push_back(cells.empty() ? text : Ratioed(text, ratio(value)));
    }
    if (has_any) Push(label, std::move(cells));
  }

  // A section without rows is none.
  void Push(std::string_view label, std::vector<std::string> cells) {
    if (!section_.label.empty()) rows_.push_back(std::exchange(section_, {}));
    rows_.push_back({std::string(label), std::move(cells)});
  }

  Strategies all_;
  Row section_;
  std::vector<Row> rows_;
};

void AddVerdicts(Rows& rows, Strategies all) {
  std::vector<std::string> words;
  for (const ComparedStrategy& one : all) {
    words.emplace_back(one.verdict.Fits() ? "fits" : "infeasible");
  }
  if (std::ranges::count(words, "infeasible") == 0) return;
  rows.AddWords("  verdict", std::move(words));
}

// Returns whether a plan decides this in an execution's place.
bool IsPlanned(std::string_view key) {
  return key == "activation_recompute" || key == "seq_par_ag_redo";
}

void AddExecutions(Rows& rows, Strategies all) {
  for (size_t key = 0; key < costmodel::kExecutionKeys.size(); ++key) {
    std::vector<std::string> words;
    for (const ComparedStrategy& one : all) {
      words.push_back(one.strategy.plan_budget &&
                              IsPlanned(costmodel::kExecutionKeys[key])
                          ? "plan"
                          : FieldText(FieldsOf(one.strategy.execution)[key]));
    }
    if (std::ranges::adjacent_find(words, std::ranges::not_equal_to()) ==
        words.end()) {
      continue;
    }
    rows.AddWords(fmt::format("  {}", costmodel::kExecutionKeys[key]),
                  std::move(words));
  }
}

void AddMemory(Rows& rows) {
  using F = StrategyFigures;
  // The share of a tier that is left, where the tier is used.
  const auto left = [](double F::*used, double F::*rest, double sign) {
    return [used, rest, sign](const F& figures) {
      const double bytes = sign * figures.*rest;
      return figures.*used > 0 && bytes > 0 ? bytes : F::kNone;
    };
  };
  rows.AddSection("memory of a processor");
  rows.Add("  weights", &F::weights, Bytes);
  rows.Add("  activations", &F::activations, Bytes);
  rows.Add("    of them checkpoints", &F::checkpoints, Bytes);
  rows.Add("  activation gradients", &F::activation_grads, Bytes);
  rows.Add("  weight gradients", &F::weight_grads, Bytes);
  rows.Add("  optimizer state", &F::optimizer, Bytes);
  rows.Add("  tier 1", &F::tier1, Bytes);
  rows.AddPlain("    left", left(&F::tier1, &F::tier1_left, 1), Bytes);
  rows.AddPlain("    missing", left(&F::tier1, &F::tier1_left, -1), Bytes);
  rows.Add("  tier 2", &F::tier2, Bytes);
  rows.AddPlain("    left", left(&F::tier2, &F::tier2_left, 1), Bytes);
  rows.AddPlain("    missing", left(&F::tier2, &F::tier2_left, -1), Bytes);
}

constexpr std::array<std::pair<std::string_view, double StrategyFigures::*>, 11>
    kTimeRows = {{
        {"  forward", &StrategyFigures::forward},
        {"  backward", &StrategyFigures::backward},
        {"  optimizer step", &StrategyFigures::optimizer_step},
        {"  recomputation", &StrategyFigures::recompute},
        {"  pipeline bubble", &StrategyFigures::bubble},
        {"  tensor-parallel comm.", &StrategyFigures::tensor_comm},
        {"    its repetition", &StrategyFigures::repeated_comm},
        {"  pipeline comm.", &StrategyFigures::pipeline_comm},
        {"  data-parallel comm.", &StrategyFigures::data_comm},
        {"  offload", &StrategyFigures::offload},
        {"  total", &StrategyFigures::total},
    }};

void AddTimes(Rows& rows) {
  rows.AddSection("time of a batch");
  for (const auto& [label, value] : kTimeRows) {
    rows.Add(label, value, HumanSeconds);
  }
  rows.AddSection("share of it");
  for (const auto& [label, value] : kTimeRows) {
    rows.AddPlain(
        label,
        [value = value](const StrategyFigures& figures) {
          return Ratio(figures.*value, figures.total);
        },
        Percent);
  }
}

void AddRates(Rows& rows) {
  const auto rate = [](double value) { return fmt::format("{:.4g}", value); };
  using F = StrategyFigures;
  rows.AddSection("a second");
  rows.Add("  samples", &F::sample_rate, rate);
  rows.Add("  tokens", &F::token_rate, [&](double value) {
    return value < 1e3 ? rate(value) : FormatCount(std::llround(value));
  });
  rows.AddSection("FLOPs utilisation");
  rows.Add("  model", &F::model_utilisation, Percent);
  rows.Add("  hardware", &F::hardware_utilisation, Percent);
}

size_t WidthOf(const Row& heading, const std::vector<Row>& rows, size_t cell) {
  size_t width = TextWidth(heading.cells[cell]);
  for (const Row& row : rows) {
    width = std::max(width, TextWidth(row.cells[cell]));
  }
  return kGap + width;
}

std::string BlockText(const Row& heading, const std::vector<Row>& rows,
                      size_t begin, size_t end, const Terminal& terminal) {
  std::vector<Table::Align> align(end - begin + 1, Table::Align::kRight);
  align[0] = Table::Align::kLeft;
  Table table(align);
  const auto add = [&](const Row& row) {
    std::vector<std::string> cells{row.label};
    cells.insert(cells.end(), row.cells.begin() + static_cast<int64_t>(begin),
                 row.cells.begin() + static_cast<int64_t>(end));
    table.AddRow(std::move(cells));
  };
  add(heading);
  for (const Row& row : rows) add(row);
  return table.ToString(terminal);
}

}  // namespace

std::string ComparisonText(Strategies all, size_t width,
                           const Terminal& terminal) {
  Rows rows(all);
  rows.AddSection("strategy");
  AddVerdicts(rows, all);
  AddExecutions(rows, all);
  AddMemory(rows);
  AddTimes(rows);
  AddRates(rows);
  Row heading;
  for (const ComparedStrategy& one : all) {
    heading.cells.push_back(graph::OneLine(one.strategy.name, 40));
  }
  size_t label = 0;
  for (const Row& row : rows.rows()) {
    label = std::max(label, TextWidth(row.label));
  }
  std::string text;
  for (size_t begin = 0; begin < all.size();) {
    size_t used = label + WidthOf(heading, rows.rows(), begin);
    size_t end = begin + 1;
    for (; end < all.size(); ++end) {
      used += WidthOf(heading, rows.rows(), end);
      if (used > width) break;
    }
    if (begin > 0) text += "\n";
    text += BlockText(heading, rows.rows(), begin, end, terminal);
    begin = end;
  }
  return text;
}

}  // namespace acplan::cli
