#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "cli/command.h"
#include "cli/input/output_files.h"
#include "cli/lengths/length_flags.h"
#include "cli/lengths/planned_batches.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/allocator_text.h"
#include "cli/planning/run_place.h"
#include "cli/report/page.h"
#include "cli/report/run_data.h"
#include "cli/report/step_data.h"
#include "cli/terminal/text.h"
#include "graph/base/file_io.h"
#include "graph/base/message_text.h"
#include "graph/run/run_on_device.h"
#include "problems/plan/device_levers.h"
#include "problems/plan/device_run.h"
#include "problems/plan/length_steps.h"

namespace acplan::cli {
namespace {

using nlohmann::ordered_json;

struct LengthsReportFlags {
  LengthFlags lengths;
  std::string plan;
  AllocatorFlags allocator;
  std::string output;
};

// Returns the run of all batches with native and with expandable segments, one of
// them as the device is set.
ordered_json RunJson(const std::string& name, const PlannedBatches& batches,
                     const BatchesOnDevice& on_device) {
  problems::PlanDevice device;
  device.allocator = on_device.setting.allocator;
  device.torch_version = TorchVersionText(on_device.setting.config);
  device.makes_state_first = on_device.setting.makes_state_first;
  device.ddp = on_device.setting.ddp;
  RunToDraw drawing{
      .shapes = batches.run_steps.shapes,
      .run = RunOf(batches, {.plan = problems::ProgramPlan::kGiven,
                             .setting = on_device.setting}),
      .settings = SettingsToDraw(device),
      .device_bytes = on_device.device_bytes};
  drawing.place_text = [&](int64_t event) {
    return PlaceInRunText(batches.run_steps, drawing.run, event);
  };
  ordered_json json = {{"name", name}, {"device", DrawnRunsJson(drawing)}};
  for (size_t k = 0; k < drawing.settings.size(); ++k) {
    const std::optional<graph::LeastDevice> least =
        graph::FindLeastDevice(drawing.run, drawing.settings[k].config);
    json["device"]["runs"][k]["least_device_bytes"] =
        least ? ordered_json(least->bytes) : nullptr;
  }
  return json;
}

ordered_json LengthsJson(const PlannedBatches& batches) {
  ordered_json json = ordered_json::array();
  for (const LengthRow& row : RowsOf(batches)) {
    json.push_back({{"length", row.length},
                    {"batches", row.batches},
                    {"evaluations", row.evaluations},
                    {"units", row.units},
                    {"live_bytes", row.live_bytes},
                    {"recompute_ms", row.recompute_ms}});
    if (batches.table) {
      json.back()["up_to"] = batches.table->EntryFor(row.length).longest;
    }
  }
  return json;
}

ordered_json PageData(const LengthsReportFlags& flags,
                      const PlannedBatches& batches) {
  const BatchesOnDevice on_device = DeviceOf(flags.allocator, batches.table);
  ordered_json data = {
      {"format", "acplan.lengths_report"},
      {"version", 1},
      {"model", batches.problem.traced.front().trace.model.name},
      {"batches", batches.problem.order.size()},
      {"kinds", KindNames()},
      {"free_kinds", FreeKindNames()},
      {"torch_version", TorchVersionText(on_device.setting.config)},
      {"lengths", LengthsJson(batches)},
      {"recompute_ms",
       problems::MeanRecomputeMs(batches.problem, batches.steps)},
      {"runs", ordered_json::array()}};
  if (!batches.table) {
    data["runs"].push_back(RunJson("no plan", batches, on_device));
    return data;
  }
  const auto unplanned = UnderPlans(batches.problem, std::nullopt);
  data["runs"].push_back(RunJson("no plan", *unplanned, on_device));
  data["runs"].push_back(
      RunJson(std::filesystem::path(flags.plan).filename().string(), batches,
              on_device));
  if (!batches.table->switches.empty()) {  // not of a single plan
    data["bound_ms"] = batches.table->bound_ms;
  }
  return data;
}

int RunLengthsReport(const LengthsReportFlags& flags,
                     const Terminal& terminal) {
  RequirePageName(flags.output);
  const auto batches = ReadPlannedBatches(flags.lengths, flags.plan);
  RequireDdp(flags.allocator, batches->problem);
  const ordered_json data = PageData(flags, *batches);
  const std::string page = ReportPage(
      PageKind::kLengths,
      fmt::format("Memory of batches of {}", data["model"].get<std::string>()),
      data);
  graph::WriteFile(flags.output, page);
  terminal.Print(fmt::format("{}: {}\n", graph::OneLine(flags.output, 400),
                             FormatBytesExactly(std::ssize(page))));
  return kExitOk;
}

}  // namespace

Command AddLengthsReportCommand(CLI::App& program) {
  auto flags = std::make_shared<LengthsReportFlags>();
  CLI::App* app = program.add_subcommand(
      "report", "Write an HTML page about a run of batches");
  flags->lengths.AddTo(*app);
  AddPlanOfBatches(*app, flags->plan);
  flags->allocator.AddTo(
      *app,
      "the device memory that PyTorch may use (default: the table's, or no "
      "limit)");
  flags->allocator.AddOptimizerStateTo(*app, "the table's, or update");
  flags->allocator.AddDdpTo(*app);
  AddOutput(*app, flags->output, "write the page here (.html)");
  app->footer(
      "Example:\n  acplan lengths report 128=short.json 512=long.json "
      "--lengths lengths.txt --plan table.json -o report.html\n"
      "Exit status: 0 written, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunLengthsReport(*flags, terminal);
          }};
}

}  // namespace acplan::cli
