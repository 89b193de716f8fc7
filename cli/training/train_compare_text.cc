#include "cli/training/train_compare_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/terminal/human_numbers.h"
#include "cli/terminal/text.h"
#include "cli/training/strategy_text.h"
#include "cli/training/train_show_text.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

namespace {

using costmodel::TrainingReport;
using nlohmann::ordered_json;

constexpr size_t kColumnsOfText = 100;
constexpr size_t kStrategiesAbreast = 4;
constexpr double kGiB = 1024.0 * 1024 * 1024;

using Compared = std::span<const ComparedTraining>;

std::string ValueText(const ordered_json& settings, const std::string& key) {
  if (!settings.contains(key)) return "";
  const ordered_json& value = settings[key];
  return value.is_string() ? value.get<std::string>()
                           : graph::CompactText(value);
}

// Returns the settings that differ between strategies, in the order of the
// first strategy that has each.
std::vector<std::string> DifferingKeys(
    const std::vector<ordered_json>& settings) {
  std::vector<std::string> keys;
  for (const ordered_json& one : settings) {
    for (const auto& [key, unused] : one.items()) {
      const auto differs = [&, &name = key](const ordered_json& other) {
        return ValueText(other, name) != ValueText(settings.front(), name);
      };
      if (std::ranges::find(keys, key) == keys.end() &&
          std::ranges::any_of(settings, differs)) {
        keys.push_back(key);
      }
    }
  }
  return keys;
}

// Returns "1  NAME" and below it the settings, in lines of the page's width.
std::string LegendText(const std::vector<ComparedTraining>& compared,
                       const Terminal& terminal) {
  std::vector<ordered_json> settings;
  for (const ComparedTraining& one : compared) {
    settings.push_back(StrategyJson(one.report.job));
  }
  const std::vector<std::string> keys = DifferingKeys(settings);
  std::string text;
  for (size_t i = 0; i < compared.size(); ++i) {
    text += terminal.Bold(fmt::format("{}  {}", i + 1, compared[i].name));
    size_t column = kColumnsOfText;
    for (const std::string& key : keys) {
      if (!settings[i].contains(key)) continue;
      const std::string part =
          fmt::format("{} {}", key, ValueText(settings[i], key));
      if (column + 2 + part.size() > kColumnsOfText) {
        text += "\n   " + part;
        column = 3 + part.size();
      } else {
        text += ", " + part;
        column += 2 + part.size();
      }
    }
    text += "\n";
  }
  return text + "\n";
}

// Tables of some strategies each, so that none is wider than a page.
class ComparisonTable {
 public:
  ComparisonTable(Compared compared, size_t first)
      : compared_(compared), first_(first), table_(Columns(compared.size())) {}

  void AddHeading(const std::string& name) {
    std::vector<std::string> cells = {name};
    for (size_t i = 0; i < compared_.size(); ++i) {
      cells.push_back(fmt::to_string(first_ + i + 1));
    }
    table_.AddRow(std::move(cells));
  }
  void AddRow(std::string_view name,
              const std::function<std::string(const ComparedTraining&)>& cell) {
    std::vector<std::string> cells = {std::string(name)};
    for (const ComparedTraining& one : compared_) cells.push_back(cell(one));
    table_.AddRow(std::move(cells));
  }
  void AddRule() { table_.AddRule(); }
  std::string ToString(const Terminal& terminal) const {
    return table_.ToString(terminal) + "\n";
  }

 private:
  static std::vector<Table::Align> Columns(size_t count) {
    std::vector<Table::Align> align(count + 1, Table::Align::kRight);
    align.front() = Table::Align::kLeft;
    return align;
  }

  Compared compared_;
  size_t first_;
  Table table_;
};

std::string TimesText(Compared compared, size_t first, double seconds,
                      const Terminal& terminal) {
  ComparisonTable table(compared, first);
  table.AddHeading("time per iteration");
  const std::vector<TimePart> parts = PartsOf(compared.front().report.time);
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto part = [i](const ComparedTraining& one) {
      return PartsOf(one.report.time)[i].seconds;
    };
    if (std::ranges::all_of(compared, [&](const ComparedTraining& one) {
          return part(one) < 1e-9;
        })) {
      continue;
    }
    table.AddRow(parts[i].text, [&](const ComparedTraining& one) {
      return HumanSeconds(part(one));
    });
  }
  table.AddRule();
  table.AddRow("total", [](const ComparedTraining& one) {
    return HumanSeconds(one.report.time.Total());
  });
  table.AddRow("ratio to the first", [&](const ComparedTraining& one) {
    return fmt::format("{:.3f}", one.report.time.Total() / seconds);
  });
  return table.ToString(terminal);
}

std::string RatesText(Compared compared, size_t first,
                      const Terminal& terminal) {
  ComparisonTable table(compared, first);
  table.AddHeading("rates");
  const auto add = [&](std::string_view name, const auto& value,
                       std::string_view form) {
    table.AddRow(name, [&](const ComparedTraining& one) {
      return fmt::format(fmt::runtime(form), value(one));
    });
  };
  using One = const ComparedTraining&;
  add(
      "tokens/s/GPU", [](One one) { return one.report.TokensPerGpuSecond(); },
      "{:.1f}");
  add(
      "model utilisation, %",
      [](One one) { return 100 * one.report.ModelUtilisation(); }, "{:.1f}");
  add(
      "hardware utilisation, %",
      [](One one) { return 100 * one.report.HardwareUtilisation(); }, "{:.1f}");
  const TrainQuestion& question = compared.front().question;
  const double tokens = question.tokens.value_or(1e9);
  if (question.tokens || question.price) {
    add(
        fmt::format("GPU-hours for {:.4g} tokens", tokens),
        [&](One one) { return one.report.GpuHours(tokens); }, "{:.4g}");
  }
  if (question.price) {
    add(
        "cost",
        [&](One one) { return one.report.GpuHours(tokens) * *question.price; },
        "{:.4g}");
  }
  return table.ToString(terminal);
}

std::string MemoriesText(Compared compared, size_t first,
                         const Terminal& terminal) {
  ComparisonTable table(compared, first);
  table.AddHeading("GiB of the fullest stage");
  constexpr size_t kParts = std::tuple_size_v<decltype(PartsOf(
      std::declval<const costmodel::RankMemory&>()))>;
  for (size_t i = 0; i < kParts; ++i) {
    const auto part = [i](const ComparedTraining& one) {
      return PartsOf(one.report.memory.Worst())[i];
    };
    table.AddRow(part(compared.front()).name, [&](const ComparedTraining& one) {
      return fmt::format("{:.2f}", part(one).bytes / kGiB);
    });
  }
  table.AddRule();
  table.AddRow("total", [](const ComparedTraining& one) {
    return fmt::format("{:.2f}", one.report.memory.Worst().Total() / kGiB);
  });
  table.AddRow("budget", [](const ComparedTraining& one) {
    return fmt::format("{:.2f}", BudgetOf(one.question, one.report.job) / kGiB);
  });
  table.AddRow("", [](const ComparedTraining& one) -> std::string {
    return one.report.Fits(BudgetOf(one.question, one.report.job))
               ? "fits"
               : "does not fit";
  });
  return table.ToString(terminal);
}

}  // namespace

ordered_json ComparisonJson(const std::vector<ComparedTraining>& compared) {
  ordered_json json = {{"format", "acplan.training_comparison"},
                       {"version", 1},
                       {"model", compared.front().question.model}};
  const double first = compared.front().report.time.Total();
  for (const ComparedTraining& one : compared) {
    json["strategies"].push_back(
        {{"name", one.name},
         {"ratio", one.report.time.Total() / first},
         {"report", ToJson(one.report, one.question)}});
  }
  return json;
}

std::string ComparisonText(const std::vector<ComparedTraining>& compared,
                           const Terminal& terminal) {
  const TrainingReport& first = compared.front().report;
  std::string text = fmt::format("{} on {}, {} strategies\n\n",
                                 terminal.Bold(compared.front().question.model),
                                 first.job.cluster.gpu.name, compared.size());
  text += LegendText(compared, terminal);
  for (size_t i = 0; i < compared.size(); i += kStrategiesAbreast) {
    const Compared some = Compared(compared).subspan(
        i, std::min(kStrategiesAbreast, compared.size() - i));
    text += TimesText(some, i, first.time.Total(), terminal) +
            RatesText(some, i, terminal) + MemoriesText(some, i, terminal);
  }
  text.pop_back();
  return text;
}

}  // namespace acplan::cli
