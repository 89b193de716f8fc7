#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/lengths/length_flags.h"
#include "cli/lengths/planned_batches.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/plan_device.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "problems/length_plans.h"

namespace acplan::cli {
namespace {

// --time-limit without the flag: a table takes many plans.
constexpr double kTableSeconds = 60;

struct LengthsPlanFlags {
  LengthFlags lengths;
  PlanningFlags planning;
  AllocatorFlags allocator;
  std::string plans = "1";
  std::vector<int64_t> switches;
  std::string output;
  bool json = false;
};

std::string EntriesText(const problems::PlanTable& table,
                        const Terminal& terminal) {
  using enum Table::Align;
  Table rows({kLeft, kRight, kRight, kRight});
  rows.AddRow({"lengths", "units", "peak", "recomputed"});
  int64_t shortest = 1;
  for (const problems::TableEntry& entry : table.entries) {
    rows.AddRow({fmt::format("{} to {}", shortest, entry.longest),
                 FormatCount(std::ssize(entry.plan.modules)),
                 graph::FormatBytes(entry.plan.peak_bytes),
                 FormatMs(entry.plan.recompute_ms)});
    shortest = entry.longest + 1;
  }
  return rows.ToString(terminal);
}

std::string TableText(const problems::LengthProblem& problem,
                      const problems::PlanTable& table,
                      const Terminal& terminal) {
  const problems::PlanDevice& device = table.device;
  return fmt::format("{}, {} batches of {} lengths, at most {} {}\n",
                     terminal.Bold(graph::OneLine(table.model)),
                     FormatCount(std::ssize(problem.order)),
                     FormatCount(std::ssize(problem.lengths)), table.most_plans,
                     table.most_plans == 1 ? "plan" : "plans") +
         fmt::format("device {}\n\n", FormatBytesExactly(table.memory_bytes)) +
         EntriesText(table, terminal) +
         fmt::format(
             "\non the device   {} allocated, {} reserved at most; the least "
             "device has {} (PyTorch {})\n",
             graph::FormatBytes(device.allocated_bytes),
             graph::FormatBytes(device.reserved_bytes),
             graph::FormatBytes(device.least_device_bytes),
             device.torch_version) +
         (device.retries > 0
              ? fmt::format("{} {}: each empties the cache and waits for the "
                            "device\n",
                            device.retries,
                            device.retries == 1 ? "retry" : "retries")
              : "") +
         SettingsText(device) +
         fmt::format(
             "recomputed by a batch on average: {}; no table that ends its "
             "entries at {} and whose live bytes fit the device recomputes "
             "less than {} (gap {}, {:.1f} s)\n",
             FormatMs(table.recompute_ms), fmt::join(table.switches, ", "),
             FormatMs(table.bound_ms), FormatPercentUp(table.Gap()),
             table.seconds);
}

std::string WhyNone(const problems::LengthAnswer& answer) {
  if (answer.is_infeasible) {
    return "infeasible: no plan for the longest batch fits the device" +
           (answer.minimum_budget_bytes
                ? fmt::format("; the least live bytes that one needs are {}\n",
                              FormatBytesExactly(*answer.minimum_budget_bytes))
                : std::string("\n"));
  }
  const std::string text =
      "no plan: the search ended without one, and without a proof that there "
      "is none\n";
  return text + NoFitText(answer.least_device_bytes);
}

int RunLengthsPlan(const LengthsPlanFlags& flags, const Terminal& terminal) {
  if (flags.allocator.device_memory.empty()) {
    throw InputError("--device-memory is required");
  }
  const problems::LengthProblem problem = flags.lengths.Read();
  RequireDdp(flags.allocator, problem);
  const graph::Trace& longest = problem.lengths[problem.Longest()].trace;
  const ProfileInput input{
      .profile = ProfileOf(longest, problem.traced.back().name),
      .trace = longest};
  problems::LengthQuestion question;
  question.problem = &problem;
  question.options = flags.planning.Options(input, kTableSeconds);
  question.most_plans = ParseWhole(flags.plans, "--plans", 1, 1'000);
  question.switches = flags.switches;
  question.options.limits.interrupted = &InterruptFlag();
  question.segments = flags.planning.Segments(input, question.options);
  question.device = ParseDevice(flags.allocator, input, question.options);
  ProgressLine progress(terminal);
  question.options.limits.on_progress = [&](const solver::SearchProgress& p) {
    progress.Show(p.seconds, [&] { return ProgressText(p); });
  };
  const problems::LengthAnswer answer = AskForLengths(question);
  if (!answer.table) {
    if (!flags.json) {
      terminal.Print(BrokenLines(WhyNone(answer), terminal));
    }
    return terminal.Explain(
        WhyNone(answer), answer.is_infeasible ? kExitInfeasible : kExitLimit);
  }
  const std::string json = ToJson(*answer.table);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(
      flags.json ? json
                 : BrokenLines(NamedDeviceText(flags.allocator) +
                                   TableText(problem, *answer.table, terminal),
                               terminal));
  return kExitOk;
}

}  // namespace

Command AddLengthsPlanCommand(CLI::App& program) {
  auto flags = std::make_shared<LengthsPlanFlags>();
  CLI::App* app = program.add_subcommand(
      "plan", "Find plans for a device and batches of several lengths");
  flags->lengths.AddTo(*app);
  app->add_option("--plans", flags->plans,
                  "plans that the table may have, switched by length "
                  "(default 1)")
      ->type_name("K");
  app->add_option("--switches", flags->switches,
                  "lengths at which the table may switch: 128,256 (default: "
                  "up to 8 of the batches' lengths)")
      ->delimiter(',')
      ->type_name("LIST");
  flags->allocator.AddTo(*app, "the device memory that PyTorch may use");
  flags->allocator.AddOptimizerStateTo(*app, "the one that recomputes less");
  flags->allocator.AddDdpTo(*app);
  flags->planning.AddTo(*app, kTableSeconds);
  flags->planning.AddSegmentsTo(*app);
  AddOutput(*app, flags->output, "write the table here (.json or .json.gz)");
  app->add_flag("--json", flags->json, "print the table and nothing else");
  app->footer(
      "Example:\n  acplan lengths plan 128=short.json 512=long.json --lengths "
      "lengths.txt --device-memory 8GiB --plans 2 -o table.json\n"
      "Exit status: 0 a table was found, 2 bad input, 3 proven infeasible, 4 a "
      "limit was hit without a table.");
  return {app, [flags](const Terminal& terminal) {
            return RunLengthsPlan(*flags, terminal);
          }};
}

}  // namespace acplan::cli
