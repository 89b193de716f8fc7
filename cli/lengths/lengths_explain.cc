#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/lengths/length_flags.h"
#include "cli/lengths/planned_batches.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/explain_device.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "problems/plan/device_levers.h"

namespace acplan::cli {
namespace {

struct LengthsExplainFlags {
  LengthFlags lengths;
  std::string plan;
  AllocatorFlags allocator;
  std::string top = "10";
  std::string output;
  bool json = false;
};

// Refers to the batches, which must outlive it.
ExplainedProgram ProgramOf(const PlannedBatches& batches,
                           const problems::DeviceSetting& setting) {
  using enum problems::DeviceLever;
  ExplainedProgram explained{
      .program = {.plan = batches.table ? problems::ProgramPlan::kGiven
                                        : problems::ProgramPlan::kNone,
                  .setting = setting},
      .run_of =
          [&batches](const problems::DeviceProgram& program) {
            return RunOf(batches, program);
          },
      .steps = batches.run_steps,
      .plans = {}};
  if (batches.table) explained.plans.push_back(kNoPlan);
  if (batches.table && batches.table->entries.size() > 1) {
    explained.plans.push_back(kPlanOfLongest);
  }
  return explained;
}

int RunLengthsExplain(const LengthsExplainFlags& flags,
                      const Terminal& terminal) {
  const auto top =
      static_cast<size_t>(ParseWhole(flags.top, "--top", 1, 1'000'000));
  const auto batches = ReadPlannedBatches(flags.lengths, flags.plan);
  RequireDdp(flags.allocator, batches->problem);
  const BatchesOnDevice on_device = DeviceOf(flags.allocator, batches->table);
  if (!on_device.device_bytes) {
    throw InputError(
        "--device-memory is required, unless --plan is a table of plans");
  }
  const DeviceExplanation answer = ExplainDevice(
      ProgramOf(*batches, on_device.setting), *on_device.device_bytes);
  nlohmann::ordered_json json = {
      {"model", batches->problem.traced.front().trace.model.name},
      {"batches", batches->problem.order.size()}};
  json.update(ToJson(answer));
  const std::string text = graph::IndentedText(json);
  if (!flags.output.empty()) graph::WriteFile(flags.output, text);
  terminal.Print(flags.json
                     ? text
                     : BrokenLines(BatchesText(*batches, terminal) + "\n" +
                                       ToText(answer, top, terminal),
                                   terminal));
  return kExitOk;
}

}  // namespace

Command AddLengthsExplainCommand(CLI::App& program) {
  auto flags = std::make_shared<LengthsExplainFlags>();
  CLI::App* app = program.add_subcommand(
      "explain", "Show the peak of a run of batches, and what reduces it");
  flags->lengths.AddTo(*app);
  AddPlanOfBatches(*app, flags->plan);
  flags->allocator.AddTo(
      *app, "the device memory that PyTorch may use (default: the table's)");
  flags->allocator.AddOptimizerStateTo(*app, "the table's, or update");
  flags->allocator.AddDdpTo(*app);
  app->add_option("--top", flags->top, "lines beside holes to print (10)")
      ->type_name("N");
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "Example:\n  acplan lengths explain 128=short.json 512=long.json "
      "--lengths lengths.txt --plan table.json\n"
      "Exit status: 0 explained, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunLengthsExplain(*flags, terminal);
          }};
}

}  // namespace acplan::cli
