#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/input/plan_input.h"
#include "cli/planning/peak_place.h"
#include "cli/planning/streams_text.h"
#include "cli/show/views.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/check/plan_check.h"
#include "problems/plan/baseline.h"
#include "problems/plan/plan.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::cli {

using problems::Plan;
using problems::PlanEffect;

namespace {

struct Column {
  std::string name;
  std::string path;  // none: the baseline
  Plan plan;
  PlanEffect effect;
  std::string peak_place;
  std::optional<graph::StreamTimes> before = {}, streams = {};
};

double Overhead(const Column& column, double runtime_ms) {
  if (column.streams && column.before->step_ms > 0) {
    return std::max(0.0, column.streams->step_ms / column.before->step_ms - 1);
  }
  return runtime_ms > 0 ? column.effect.recompute_ms / runtime_ms : 0;
}

std::vector<graph::CheckpointedModule> UnitsOf(
    const graph::Trace* trace,
    const std::vector<problems::PlannedModule>& modules) {
  if (trace == nullptr) return {};
  return problems::CheckpointedModules(*trace, modules);
}

// Returns whether the plan's own budget holds here, as "yes" or "no"; "-"
// without a budget.
std::string HoldsText(const Column& column) {
  if (column.plan.budget_bytes == 0) return "-";
  return column.effect.peak_bytes <=
                 column.plan.budget_bytes - column.plan.reserve_bytes
             ? "yes"
             : "no";
}

std::string ToJson(const std::vector<Column>& columns,
                   const problems::MemoryOptions& memory, double runtime_ms) {
  nlohmann::ordered_json json;
  json["memory_model"] = ToString(memory.model);
  json["world_size"] = memory.world_size;
  json["without_states"] = memory.without_states;
  json["caveat"] = Caveat(memory.model);
  json["runtime_ms"] = runtime_ms;
  json["plans"] = nlohmann::ordered_json::array();
  for (const Column& column : columns) {
    nlohmann::ordered_json entry = {
        {"name", column.name},
        {"units", column.plan.modules.size()},
        {"peak_bytes", column.effect.peak_bytes},
        {"peak_module", column.effect.peak_module},
        {"peak_phase", ToString(column.effect.peak_phase)},
        {"persistent_bytes", column.effect.persistent_bytes},
        {"activation_bytes", column.effect.activation_bytes},
        {"recompute_ms", column.effect.recompute_ms},
        {"overhead", Overhead(column, runtime_ms)},
        {"budget_bytes", column.plan.budget_bytes},
        {"reserve_bytes", column.plan.reserve_bytes},
        {"holds", HoldsText(column)},
        {"status", column.path.empty()
                       ? std::string("baseline")
                       : std::string(ToString(column.plan.status))}};
    if (column.streams) entry["streams"] = cli::ToJson(*column.streams);
    json["plans"].push_back(std::move(entry));
  }
  return graph::IndentedText(json);
}

std::string ToTable(const std::vector<Column>& columns, double runtime_ms,
                    const Terminal& terminal) {
  std::vector<Table::Align> align(columns.size() + 1, Table::Align::kRight);
  align[0] = Table::Align::kLeft;
  Table table(align);
  const auto row = [&](const std::string& name, auto cell) {
    std::vector<std::string> cells{name};
    for (const Column& column : columns) cells.push_back(cell(column));
    table.AddRow(std::move(cells));
  };
  const auto bytes = [](double b) {
    return graph::FormatBytes(std::llround(b));
  };
  row("", [](const Column& c) { return c.name; });
  row("peak memory",
      [](const Column& c) { return graph::FormatBytes(c.effect.peak_bytes); });
  // Plans are compared with the model without checkpointing on as many ranks.
  const Column* unplanned = &columns[0];
  for (const Column& column : columns) {
    if (column.path.empty()) unplanned = &column;
  }
  row("  change", [&](const Column& c) {
    if (&c < unplanned) return std::string();
    return FormatChange(static_cast<double>(unplanned->effect.peak_bytes),
                        static_cast<double>(c.effect.peak_bytes));
  });
  row("  persistent",
      [&](const Column& c) { return bytes(c.effect.persistent_bytes); });
  row("  activations",
      [&](const Column& c) { return bytes(c.effect.activation_bytes); });
  row("  phase", [](const Column& c) {
    return std::string(ToString(c.effect.peak_phase));
  });
  row("AC units",
      [](const Column& c) { return fmt::format("{}", c.plan.modules.size()); });
  row("recomputed",
      [](const Column& c) { return FormatMs(c.effect.recompute_ms); });
  if (columns.back().streams) {
    row("communication",
        [](const Column& c) { return FormatMs(c.streams->communication_ms); });
    row("  exposed",
        [](const Column& c) { return FormatMs(c.streams->exposed_ms); });
  }
  row("overhead", [&](const Column& c) {
    return FormatPercentUp(Overhead(c, runtime_ms));
  });
  row("budget", [](const Column& c) {
    return c.plan.budget_bytes > 0 ? graph::FormatBytes(c.plan.budget_bytes)
                                   : std::string("-");
  });
  row("holds", HoldsText);
  std::string text = table.ToString(terminal) + "\n";
  for (const Column& column : columns) {
    text += fmt::format("{}: peak at {}\n", column.name, column.peak_place);
  }
  return text;
}

std::string FileName(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// Returns the columns of the baseline and the plans, named after the files if
// their names differ.
std::vector<Column> ReadColumns(const std::vector<std::string>& paths,
                                const graph::Profile& profile) {
  std::vector<Column> columns{{.name = "baseline",
                               .path = "",
                               .plan = {},
                               .effect = {},
                               .peak_place = {}}};
  std::set<std::string> names{"baseline"};
  bool differ = true;
  for (const std::string& path : paths) {
    differ = names.insert(FileName(path)).second && differ;
  }
  for (const std::string& path : paths) {
    columns.push_back({.name = differ ? FileName(path) : path,
                       .path = path,
                       .plan = ReadAnswer(path, profile),
                       .effect = {},
                       .peak_place = {}});
  }
  return columns;
}

}  // namespace

void ShowPlans(const ShowFlags& flags, const ProfileInput& input,
               const Terminal& terminal) {
  const graph::Profile& profile = input.profile;
  const graph::ModuleTree tree(profile);
  std::vector<Column> columns = ReadColumns(flags.plans, profile);
  const problems::MemoryOptions memory =
      flags.memory.Resolve(columns[1].plan.memory);
  RequireTrace(memory, input, columns[1].path);
  if (memory.world_size > 1) {
    columns.insert(columns.begin() + 1,
                   {.name = fmt::format("{} ranks", memory.world_size),
                    .path = "",
                    .plan = {},
                    .effect = {},
                    .peak_place = {}});
  }
  for (Column& column : columns) {
    problems::MemoryOptions options = memory;
    if (&column == &columns.front()) options.world_size = 1;
    try {
      const ProfileInput own = WithSegmentsOf(input, column.plan, column.path);
      column.effect = ComputeEffect(own.profile, column.plan.modules, options,
                                    column.plan.tradeoff, own.TraceIfAny());
      column.before = StreamTimesOf(own.TraceIfAny(), {});
      column.streams = StreamTimesOf(
          own.TraceIfAny(), UnitsOf(own.TraceIfAny(), column.plan.modules));
      column.peak_place = PeakPlace(own.TraceIfAny(), column.plan, options,
                                    column.effect.peak_module);
    } catch (const InputError& error) {
      throw NamingFile(error, column.path);
    }
    if (!column.path.empty() &&
        QuestionText(column.plan.memory) != QuestionText(memory)) {
      terminal.Warn(fmt::format(
          "{} was planned for {}, and is compared under {}", column.name,
          QuestionText(column.plan.memory), QuestionText(memory)));
    }
  }
  const double runtime_ms = ComputeBaseline(profile, tree, memory).runtime_ms;
  if (flags.json) {
    terminal.Print(ToJson(columns, memory, runtime_ms));
    return;
  }
  std::string text = fmt::format(
      "{}, {}\n\n", terminal.Bold(graph::OneLine(profile.model.name)),
      QuestionText(memory));
  text += ToTable(columns, runtime_ms, terminal);
  text += NoteOn(Caveat(memory.model), terminal);
  terminal.Print(BrokenLines(text, terminal));
}

}  // namespace acplan::cli
