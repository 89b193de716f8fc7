#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/plan_input.h"
#include "cli/lengths/length_flags.h"
#include "cli/lengths/planned_batches.h"
#include "cli/planning/allocator_flags.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "problems/check/table_rules.h"

namespace acplan::cli {
namespace {

struct LengthsCheckFlags {
  LengthFlags lengths;
  std::string plan;
  AllocatorFlags allocator;
  std::string reserve;
  UnitFlags units;
  PatternFlags patterns;
  bool json = false;
};

// Puts what the flags give in place of what the table states. Its statements about a run
// hold for its own batches only.
problems::PlanTable WithFlags(problems::PlanTable table,
                              const LengthsCheckFlags& flags) {
  const AllocatorQuestion question = flags.allocator.Question();
  if (question.device_bytes) table.memory_bytes = *question.device_bytes;
  table.reserve_bytes =
      ParseReserve(flags.reserve).value_or(table.reserve_bytes);
  if (table.reserve_bytes >= table.memory_bytes) {
    throw InputError(
        fmt::format("--reserve: expected less than the device ({}), found {}",
                    graph::FormatBytes(table.memory_bytes),
                    graph::FormatBytes(table.reserve_bytes)));
  }
  problems::PlanDevice& device = table.device;
  const bool is_as_stated =
      flags.allocator.FirstGiven().empty() && flags.reserve.empty();
  if (is_as_stated) return table;
  if (!flags.allocator.allocator.empty()) {
    device.allocator = flags.allocator.allocator;
  }
  if (!flags.allocator.torch_version.empty()) {
    device.torch_version = flags.allocator.torch_version;
  }
  device.makes_state_first =
      question.makes_state_first.value_or(device.makes_state_first);
  if (!flags.allocator.ddp.empty()) device.ddp = flags.allocator.ddp;
  device.allocated_bytes = device.reserved_bytes = device.least_device_bytes =
      problems::kNotStated;
  device.retries = problems::kNotStated;
  return table;
}

std::string ToJson(const problems::PlanTable& table,
                   const std::optional<std::string>& broken) {
  nlohmann::ordered_json json;
  json["holds"] = !broken;
  if (broken) json["broken_rule"] = *broken;
  json["memory_bytes"] = table.memory_bytes;
  json["reserve_bytes"] = table.reserve_bytes;
  json["recompute_ms"] = table.recompute_ms;
  return graph::IndentedText(json);
}

int RunLengthsCheck(const LengthsCheckFlags& flags, const Terminal& terminal) {
  const problems::LengthProblem problem = flags.lengths.Read();
  RequireDdp(flags.allocator, problem);
  const problems::PlanTable table =
      WithFlags(ReadTable(flags.plan, problem), flags);
  std::optional<std::string> broken;
  try {
    broken = problems::BrokenTableRule(problem, table,
                                       {.ac_units = flags.units.AcUnits(),
                                        .fsdp_units = flags.units.FsdpUnits(),
                                        .max_units = flags.units.MaxUnits(),
                                        .patterns = flags.patterns.Patterns()});
  } catch (const InputError& error) {
    throw NamingFile(error, flags.plan);
  }
  if (flags.json) {
    terminal.Print(ToJson(table, broken));
  } else if (broken) {
    terminal.Print(fmt::format("{}: {}\n", terminal.Yellow("broken"), *broken));
  } else {
    terminal.Print(fmt::format(
        "{}: {} {} for {} batches of {} lengths; a batch recomputes {} on "
        "average\n",
        terminal.Green("holds"), table.entries.size(),
        table.entries.size() == 1 ? "plan" : "plans", problem.order.size(),
        problem.lengths.size(), FormatMs(table.recompute_ms)));
  }
  return broken ? terminal.Explain("broken: " + *broken, kExitFailure)
                : kExitOk;
}

}  // namespace

Command AddLengthsCheckCommand(CLI::App& program) {
  auto flags = std::make_shared<LengthsCheckFlags>();
  CLI::App* app = program.add_subcommand(
      "check", "Check a table of plans against traces and lengths");
  flags->lengths.AddTo(*app);
  app->add_option("--plan", flags->plan, "table of plans")
      ->type_name("FILE")
      ->required();
  flags->allocator.AddTo(
      *app, "the device memory that PyTorch may use (default: the table's)");
  flags->allocator.AddOptimizerStateTo(*app, "the table's");
  flags->allocator.AddDdpTo(*app);
  app->add_option("--reserve", flags->reserve,
                  "part of the device's memory to keep free")
      ->type_name("SIZE");
  flags->units.AddTo(*app);
  flags->patterns.AddTo(*app);
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  app->footer(
      "Example:\n  acplan lengths check 128=short.json 512=long.json --lengths "
      "lengths.txt --plan table.json\n"
      "Exit status: 0 the table holds, 1 it breaks a rule, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunLengthsCheck(*flags, terminal);
          }};
}

}  // namespace acplan::cli
