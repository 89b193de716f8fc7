#include "cli/llm/fit_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/terminal/text.h"
#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/records.h"
#include "graph/base/byte_size.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::Execution;
using costmodel::FitRow;
using costmodel::FitStatus;
using costmodel::MemoryNeeds;
using costmodel::RecomputedOperator;
using nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kStatusNames = {
    "keeps_all", "recomputes", "changes", "none"};

std::string_view StatusName(FitStatus status) {
  return kStatusNames[static_cast<size_t>(status)];
}

int64_t WholeBytes(double bytes) {
  constexpr double kMost = 9e18;
  return static_cast<int64_t>(std::min(std::ceil(bytes), kMost));
}

std::string Bytes(double bytes) {
  return graph::FormatManyBytes(std::ceil(bytes));
}

std::string Seconds(double seconds) {
  return seconds >= 1 ? fmt::format("{:.3f} s", seconds)
                      : FormatMs(1e3 * seconds);
}

double Rate(const FitRow& row) {
  return SampleRate(row.execution, row.plan.times);
}

// "+6.4%": than with everything kept.
std::string Longer(const FitRow& row) {
  return FormatChange(row.all_kept_seconds, row.plan.times.total);
}

// Lists what all stages recompute: the first one's operators come first, then
// those that only others recompute.
std::vector<RecomputedOperator> RecomputedByAll(const FitRow& row) {
  std::vector<RecomputedOperator> all;
  for (const auto& stage : row.recomputed) {
    for (const RecomputedOperator& one : stage) {
      const auto place =
          std::ranges::find(all, one.name, &RecomputedOperator::name);
      if (place == all.end()) {
        all.push_back(one);
      } else {
        place->blocks += one.blocks;
      }
    }
  }
  return all;
}

// Why it fits on no network, or contradicts the model.
std::string ReasonText(const FitResult& result, const FitRow& row) {
  const auto& [model, system] =
      std::tie(result.problem.model, result.problem.system);
  return row.verdict.IsInfeasible()
             ? DescribeNumbers(row.verdict, model, system, row.execution)
             : DescribeContradiction(row.verdict, model, system, row.execution);
}

struct Kind {
  std::string_view name;
  double bytes = 0;  // in the first tier
};

std::array<Kind, 5> KindsOf(const Execution& execution,
                            const MemoryNeeds& memory) {
  const auto in_tier1 = [](const costmodel::StateSize& size, bool offloads) {
    return offloads ? size.resident : size.all;
  };
  return {{
      {"weights", in_tier1(memory.weights, execution.weight_offload)},
      {"activations",
       in_tier1(memory.activations, execution.activations_offload)},
      {"activation_gradients", memory.activation_grads},
      {"weight_gradients",
       in_tier1(memory.weight_grads, execution.optimizer_offload)},
      {"optimizer_state",
       in_tier1(memory.optimizer, execution.optimizer_offload)},
  }};
}

// "weights 12.00 GiB + optimizer state 3.00 GiB", of the first tier.
std::string KindsText(const Execution& execution, const MemoryNeeds& memory) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] : KindsOf(execution, memory)) {
    std::string words(name);
    std::ranges::replace(words, '_', ' ');
    if (bytes > 0) parts.push_back(fmt::format("{} {}", words, Bytes(bytes)));
  }
  return fmt::format("{}", fmt::join(parts, " + "));
}

std::string ChangesText(const FitRow& row) {
  return fmt::format("{}", fmt::join(row.changes, ", "));
}

// "AttnBlock_LayerNorm, MlpBlock_GeLU, 1 more in up to 105 blocks".
std::string RecomputedText(const FitRow& row) {
  constexpr size_t kMostNames = 2;
  const std::vector<RecomputedOperator> all = RecomputedByAll(row);
  if (all.empty()) return "";
  int64_t blocks = 0;
  std::vector<std::string> names;
  for (const RecomputedOperator& one : all) {
    blocks = std::max(blocks, one.blocks);
    if (names.size() < kMostNames) names.push_back(one.name);
  }
  if (all.size() > kMostNames) {
    names.push_back(fmt::format("{} more", all.size() - kMostNames));
  }
  return fmt::format("{} in {}{} block{}", fmt::join(names, ", "),
                     all.size() > 1 ? "up to " : "", blocks,
                     blocks == 1 ? "" : "s");
}

std::string MissingText(const FitRow& row) {
  std::vector<std::string> parts;
  if (row.missing.tier1 > 0) parts.push_back(Bytes(row.missing.tier1));
  if (row.missing.tier2 > 0) {
    parts.push_back(Bytes(row.missing.tier2) + " of the second tier");
  }
  std::string text = fmt::format("lacks {}", fmt::join(parts, " and "));
  if (!row.changes.empty()) text += " with " + ChangesText(row);
  return text;
}

std::string AnswerText(const FitResult& result, const FitRow& row) {
  switch (row.status) {
    case FitStatus::kKeepsAll:
      return "";
    case FitStatus::kRecomputes:
      return RecomputedText(row);
    case FitStatus::kChanges: {
      const std::string recomputed = RecomputedText(row);
      return ChangesText(row) + (recomputed.empty() ? "" : "; " + recomputed);
    }
    case FitStatus::kNone:
      return row.plan.stages.empty() ? ReasonText(result, row)
                                     : MissingText(row);
  }
  return "";
}

std::string_view FitsText(FitStatus status) {
  constexpr std::array<std::string_view, 4> kTexts = {"yes", "recomputing",
                                                      "with a change", "no"};
  return kTexts[static_cast<size_t>(status)];
}

int64_t Count(const FitResult& result, FitStatus status) {
  return std::ranges::count(result.survey.rows, status, &FitRow::status);
}

std::string SummaryText(const FitResult& result, const Terminal& terminal) {
  const costmodel::FitProblem& problem = result.problem;
  const auto& rows = result.survey.rows;
  const auto count = [&](FitStatus status) {
    return FormatCount(Count(result, status));
  };
  std::string text = fmt::format(
      "{} on {} {}, sequence {}, batch {}, microbatch {}, {}: {} of {} "
      "divisions fit without recomputation, {} with, {} with {}, {} not",
      terminal.Bold(graph::OneLine(result.model)),
      FormatCount(problem.num_procs), graph::OneLine(result.system),
      FormatCount(problem.model.seq_size), FormatCount(problem.batch_size),
      FormatCount(problem.microbatch_size),
      costmodel::kDatatypeNames[static_cast<size_t>(problem.datatype)],
      count(FitStatus::kKeepsAll),
      FormatCount(static_cast<int64_t>(rows.size())),
      count(FitStatus::kRecomputes), count(FitStatus::kChanges),
      problem.microbatch_size > 1 ? "offloading or a smaller microbatch"
                                  : "offloading",
      count(FitStatus::kNone));
  if (rows.empty() || !rows.front().Fits()) return text + "\n";
  const FitRow& best = rows.front();
  text += fmt::format("; fastest: tensor {}, pipeline {}, data {}",
                      best.execution.tensor_par, best.execution.pipeline_par,
                      best.execution.data_par);
  if (best.status == FitStatus::kRecomputes) {
    text += fmt::format(", recomputing ({})", Longer(best));
  } else if (best.status == FitStatus::kChanges) {
    text += fmt::format(", {} ({})", ChangesText(best), Longer(best));
  }
  return text + fmt::format(
                    ": {} a batch, {}\n", Seconds(best.plan.times.total),
                    terminal.Bold(fmt::format("{:.4g} samples/s", Rate(best))));
}

// All operators that the fastest division recomputes.
std::string FastestText(const FitResult& result) {
  const std::vector<RecomputedOperator> all =
      RecomputedByAll(result.survey.rows.front());
  if (all.empty()) return "";
  std::vector<std::string> parts;
  for (const RecomputedOperator& one : all) {
    parts.push_back(fmt::format("{} {}", one.name, one.blocks));
  }
  return fmt::format("the fastest recomputes, in so many of {} blocks: {}\n",
                     result.problem.model.num_blocks, fmt::join(parts, ", "));
}

std::vector<std::string> Cells(const FitResult& result, const FitRow& row) {
  std::vector<std::string> cells = {fmt::to_string(row.execution.tensor_par),
                                    fmt::to_string(row.execution.pipeline_par),
                                    fmt::to_string(row.execution.data_par),
                                    std::string(FitsText(row.status))};
  if (row.plan.stages.empty()) {
    cells.resize(11);
    cells.push_back(AnswerText(result, row));
    return cells;
  }
  cells.insert(cells.end(), {Bytes(row.all_kept.front().tier1),
                             Bytes(row.all_kept.back().tier1),
                             Bytes(row.plan.stages.front().memory.tier1),
                             Bytes(row.plan.stages.back().memory.tier1)});
  if (row.Fits()) {
    cells.insert(
        cells.end(),
        {row.status == FitStatus::kKeepsAll ? "" : Longer(row),
         Seconds(row.plan.times.total), fmt::format("{:.4g}", Rate(row))});
  } else {
    cells.resize(11);
  }
  cells.push_back(AnswerText(result, row));
  return cells;
}

// Why nothing fits where least lacks, and what would.
std::string NothingText(const FitResult& result) {
  const FitRow& row = result.survey.rows.front();
  if (row.plan.stages.empty()) {
    return fmt::format("nothing fits: {}\n", ReasonText(result, row));
  }
  return fmt::format(
      "nothing fits: tensor {}, pipeline {}, data {} comes closest and {}, "
      "keeping least: {}\n",
      row.execution.tensor_par, row.execution.pipeline_par,
      row.execution.data_par, MissingText(row),
      KindsText(row.execution, row.plan.stages.front().memory));
}

ordered_json StageJson(const FitRow& row, size_t stage) {
  const costmodel::StagePlan& plan = row.plan.stages[stage];
  ordered_json memory = ordered_json::object();
  for (const auto& [name, bytes] : KindsOf(row.execution, plan.memory)) {
    memory[std::string(name)] = WholeBytes(bytes);
  }
  ordered_json recomputed = ordered_json::array();
  for (const RecomputedOperator& one : row.recomputed[stage]) {
    recomputed.push_back({{"operator", one.name}, {"blocks", one.blocks}});
  }
  return {{"stage", plan.stage},
          {"blocks", plan.blocks},
          {"microbatches_in_flight", plan.in_flight},
          {"all_kept_bytes", WholeBytes(row.all_kept[stage].tier1)},
          {"peak_bytes", WholeBytes(plan.memory.tier1)},
          {"memory", std::move(memory)},
          {"second_tier_bytes", WholeBytes(plan.memory.tier2)},
          {"recompute_seconds", plan.recompute_seconds},
          {"recomputed", std::move(recomputed)}};
}

ordered_json RowJson(const FitResult& result, const FitRow& row) {
  ordered_json json = {{"status", StatusName(row.status)},
                       {"execution", costmodel::ToJson(row.execution)},
                       {"changes", row.changes}};
  if (row.Fits()) {
    json["batch_seconds"] = row.plan.times.total;
    json["bound_seconds"] = row.plan.bound;
    json["sample_rate"] = Rate(row);
  }
  if (row.plan.stages.empty()) {
    json["reason"] = ReasonText(result, row);
    return json;
  }
  json["all_kept_seconds"] = row.all_kept_seconds;
  if (!row.Fits()) {
    json["missing_bytes"] = WholeBytes(row.missing.tier1);
    json["missing_second_tier_bytes"] = WholeBytes(row.missing.tier2);
  }
  json["stages"] = ordered_json::array();
  for (size_t i = 0; i < row.plan.stages.size(); ++i) {
    json["stages"].push_back(StageJson(row, i));
  }
  return json;
}

}  // namespace

ordered_json ToJson(const FitResult& result) {
  const costmodel::FitProblem& problem = result.problem;
  ordered_json counts = ordered_json::object();
  for (size_t i = 0; i < kStatusNames.size(); ++i) {
    counts[std::string(kStatusNames[i])] =
        Count(result, static_cast<FitStatus>(i));
  }
  ordered_json rows = ordered_json::array();
  for (const FitRow& row : result.survey.rows) {
    rows.push_back(RowJson(result, row));
  }
  return {
      {"model", result.model},
      {"system", result.system},
      {"num_procs", problem.num_procs},
      {"seq_size", problem.model.seq_size},
      {"batch_size", problem.batch_size},
      {"microbatch_size", problem.microbatch_size},
      {"datatype",
       costmodel::kDatatypeNames[static_cast<size_t>(problem.datatype)]},
      {"capacity_bytes", WholeBytes(problem.system.mem1.capacity)},
      {"second_tier_capacity_bytes", WholeBytes(problem.system.mem2.capacity)},
      {"divisions", result.survey.divisions},
      {"left_out", result.survey.left_out},
      {"was_interrupted", result.survey.was_interrupted},
      {"counts", std::move(counts)},
      {"rows", std::move(rows)}};
}

std::string ToCsv(const FitResult& result) {
  std::string text =
      "status,tensor_par,pipeline_par,data_par,tensor_par_net,"
      "pipeline_par_net,data_par_net,microbatch_size,batch_seconds,"
      "sample_rate,all_kept_seconds,first_all_kept_bytes,last_all_kept_bytes,"
      "first_peak_bytes,last_peak_bytes,missing_bytes,"
      "missing_second_tier_bytes,changes,recomputed,reason\n";
  for (const FitRow& row : result.survey.rows) {
    const Execution& e = row.execution;
    const bool has_plan = !row.plan.stages.empty();
    text +=
        fmt::format("{},{},{},{},{},{},{},{},", StatusName(row.status),
                    e.tensor_par, e.pipeline_par, e.data_par, e.tensor_par_net,
                    e.pipeline_par_net, e.data_par_net, e.microbatch_size);
    text += row.Fits() ? fmt::format("{},{},", row.plan.times.total, Rate(row))
                       : ",,";
    text += has_plan
                ? fmt::format("{},{},{},{},{},{},{},", row.all_kept_seconds,
                              WholeBytes(row.all_kept.front().tier1),
                              WholeBytes(row.all_kept.back().tier1),
                              WholeBytes(row.plan.stages.front().memory.tier1),
                              WholeBytes(row.plan.stages.back().memory.tier1),
                              WholeBytes(row.missing.tier1),
                              WholeBytes(row.missing.tier2))
                : ",,,,,,,";
    std::vector<std::string> recomputed;
    for (const RecomputedOperator& one : RecomputedByAll(row)) {
      recomputed.push_back(fmt::format("{} {}", one.blocks, one.name));
    }
    std::string reason = has_plan ? "" : ReasonText(result, row);
    if (!reason.empty()) reason = fmt::format("\"{}\"", reason);
    text += fmt::format("{},{},{}\n", fmt::join(row.changes, "; "),
                        fmt::join(recomputed, "; "), reason);
  }
  return text;
}

std::string ToText(const FitResult& result, size_t max_rows,
                   const Terminal& terminal) {
  using enum Table::Align;
  const auto& rows = result.survey.rows;
  std::string text = SummaryText(result, terminal);
  if (rows.empty()) return text;
  text += rows.front().Fits() ? FastestText(result) : NothingText(result);
  Table table({kRight, kRight, kRight, kLeft, kRight, kRight, kRight, kRight,
               kRight, kRight, kRight, kLeft});
  table.AddRow({"tensor", "pipeline", "data", "fits", "all kept: first", "last",
                "planned: first", "last", "longer", "batch", "samples/s",
                "how"});
  const size_t shown = std::min(max_rows, rows.size());
  for (size_t i = 0; i < shown; ++i) table.AddRow(Cells(result, rows[i]));
  text += "\n" + table.ToString(terminal);
  if (shown < rows.size()) {
    text += terminal.Dim(fmt::format(
                "{} more rows: --all",
                FormatCount(static_cast<int64_t>(rows.size() - shown)))) +
            "\n";
  }
  if (result.survey.left_out > 0) {
    text += terminal.Dim(
                fmt::format("{} more divisions do not divide the batch of {}",
                            FormatCount(result.survey.left_out),
                            FormatCount(result.problem.batch_size))) +
            "\n";
  }
  return text;
}

}  // namespace acplan::cli
