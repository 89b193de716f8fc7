#include "cli/planning/explain_device.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "cli/planning/plan_device.h"
#include "cli/planning/run_place.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"

namespace acplan::cli {
namespace {

using nlohmann::ordered_json;
using problems::DeviceLever;
using problems::LeverOutcome;

// The holes whose neighbours the same lines of Python make: each hole counts for one
// such set, so that the bytes of all sets are those of all holes.
struct HolesBeside {
  std::vector<std::string> makers;  // at most two, sorted
  int64_t bytes = 0;
};

std::vector<HolesBeside> HolesByMakers(const DeviceExplanation& answer) {
  std::map<std::vector<std::string>, int64_t> bytes;
  for (const graph::Hole& hole : answer.peak.holes) {
    std::vector<std::string> makers;
    for (const int64_t event : hole.neighbours) {
      if (event < 0) continue;
      makers.push_back(MakerOf(answer.steps, answer.run, event));
    }
    std::ranges::sort(makers);
    const auto repeated = std::ranges::unique(makers);
    makers.erase(repeated.begin(), repeated.end());
    bytes[makers] += hole.bytes;
  }
  std::vector<HolesBeside> holes;
  for (const auto& [makers, sum] : bytes) {
    holes.push_back({.makers = makers, .bytes = sum});
  }
  std::ranges::stable_sort(holes, std::ranges::greater(), &HolesBeside::bytes);
  return holes;
}

// The free bytes that the allocator can give back.
int64_t ReleasableBytes(const graph::PeakLayout& peak) {
  return peak.reserved_bytes - peak.allocated_bytes - peak.HoleBytes();
}

std::string_view LeverText(DeviceLever lever) {
  switch (lever) {
    case DeviceLever::kExpandableSegments:
      return "expandable segments";
    case DeviceLever::kMaxSplitSize:
      return "max_split_size_mb";
    case DeviceLever::kStateFirst:
      return "optimizer's state first";
    case DeviceLever::kLargestFirst:
      return "model's largest tensors first";
    case DeviceLever::kEmptyAfterForward:
      return "empty cache after forward";
    case DeviceLever::kEmptyBeforeUpdate:
      return "empty cache before each update";
    case DeviceLever::kEmptyBeforeFirstUpdate:
      return "empty cache before first update";
    case DeviceLever::kNoPlan:
      return "no plan";
    case DeviceLever::kLeastBudget:
      return "plan for the least budget";
    case DeviceLever::kPlanOfLongest:
      return "plan of the longest for all";
  }
  return "";
}

std::string_view PlanText(problems::ProgramPlan plan) {
  switch (plan) {
    case problems::ProgramPlan::kNone:
      return "none";
    case problems::ProgramPlan::kLeastBudget:
      return "least";
    case problems::ProgramPlan::kOfLongest:
      return "longest";
    case problems::ProgramPlan::kGiven:
      break;
  }
  return "given";
}

std::string OutcomeText(const LeverOutcome& outcome) {
  if (outcome.levers.size() > 1) return "these together";
  if (outcome.levers.front() != DeviceLever::kMaxSplitSize) {
    return std::string(LeverText(outcome.levers.front()));
  }
  const std::string& allocator = outcome.program.setting.allocator;
  return allocator.substr(allocator.rfind("max_split_size_mb"));
}

ordered_json EmptiedJson(const graph::RunOptions& run) {
  ordered_json json = ordered_json::array();
  if (run.empties_cache_after_forward) json.push_back("after-forward");
  if (run.empties_cache_before_update) json.push_back("before-update");
  if (run.empties_cache_before_first_update) {
    json.push_back("before-first-update");
  }
  return json;
}

// Returns the settings of a program as flags of `acplan simulate` name them.
ordered_json ProgramJson(const problems::DeviceProgram& program,
                         const problems::DeviceNeed& need) {
  ordered_json json = {{"plan", PlanText(program.plan)}};
  json.update(NeedJson(need));
  json["empty_cache"] = EmptiedJson(program.run);
  json["model_order"] =
      program.run.puts_largest_first ? "largest-first" : "modules";
  return json;
}

ordered_json PeakJson(const DeviceExplanation& answer) {
  const graph::PeakLayout& peak = answer.peak;
  if (peak.event < 0) return nullptr;
  ordered_json json = PlaceInRunJson(answer.steps, answer.run, peak.event);
  json["allocated_bytes"] = peak.allocated_bytes;
  json["reserved_bytes"] = peak.reserved_bytes;
  json["hole_bytes"] = peak.HoleBytes();
  json["releasable_bytes"] = ReleasableBytes(peak);
  json["beside_holes"] = ordered_json::array();
  for (const HolesBeside& holes : HolesByMakers(answer)) {
    json["beside_holes"].push_back(
        {{"sources", holes.makers}, {"hole_bytes", holes.bytes}});
  }
  return json;
}

std::string PeakText(const DeviceExplanation& answer, size_t top) {
  const graph::PeakLayout& peak = answer.peak;
  if (peak.event < 0) return "";
  const auto& failure = answer.outcome.replay.failure;
  std::string text = fmt::format(
      "{} {} reserved: {} allocated, {} lost to holes, {} that can be "
      "released\n",
      failure ? "when it ends," : "at its peak,",
      graph::FormatBytes(peak.reserved_bytes),
      graph::FormatBytes(peak.allocated_bytes),
      graph::FormatBytes(peak.HoleBytes()),
      graph::FormatBytes(ReleasableBytes(peak)));
  text += fmt::format("at {}\n",
                      PlaceInRunText(answer.steps, answer.run, peak.event));
  const std::vector<HolesBeside> holes = HolesByMakers(answer);
  if (!holes.empty())
    text += "holes, by the makers of the blocks beside them\n";
  int64_t remaining_bytes = peak.HoleBytes();
  for (size_t k = 0; k < std::min(holes.size(), top); ++k) {
    remaining_bytes -= holes[k].bytes;
    text +=
        fmt::format("  {}: {}\n",
                    holes[k].makers.empty()
                        ? "no block"
                        : fmt::format("{}", fmt::join(holes[k].makers, "; ")),
                    graph::FormatBytes(holes[k].bytes));
  }
  if (holes.size() > top) {
    text += fmt::format("  {} others: {}\n", holes.size() - top,
                        graph::FormatBytes(remaining_bytes));
  }
  return text;
}

std::string GainText(int64_t bytes) {
  if (bytes == 0) return "none";
  return fmt::format("{}{}", bytes > 0 ? "-" : "+",
                     graph::FormatBytes(bytes > 0 ? bytes : -bytes));
}

std::string LeversTable(const DeviceExplanation& answer,
                        const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kLeft});
  table.AddRow(
      {"lever, simulated", "reserved", "least device", "change", "fits"});
  const auto row = [&](const std::string& name,
                       const problems::DeviceNeed& need,
                       const std::string& change, bool fits) {
    table.AddRow({name, graph::FormatBytes(need.reserved_bytes),
                  need.least_device_bytes
                      ? graph::FormatBytes(*need.least_device_bytes)
                      : "none",
                  change, fits ? "yes" : "no"});
  };
  row("as it is", answer.need, "", answer.outcome.Fits());
  for (size_t k = 0; k < answer.levers.size(); ++k) {
    row(OutcomeText(answer.levers[k]), answer.levers[k].need,
        GainText(answer.levers[k].gained_bytes), answer.fits[k]);
  }
  return table.ToString(terminal);
}

std::string_view RunName(const DeviceExplanation& answer) {
  if (answer.program.plan == problems::ProgramPlan::kNone) {
    return "a run without a plan";
  }
  return answer.steps.batches.empty() ? "a run of the plan"
                                      : "the run of all batches";
}

std::string TogetherText(const DeviceExplanation& answer) {
  if (answer.levers.empty() || answer.levers.back().levers.size() < 2) {
    return "";
  }
  std::vector<std::string> names;
  for (const LeverOutcome& outcome : answer.levers) {
    const bool is_part = outcome.levers.size() == 1 &&
                         std::ranges::find(answer.levers.back().levers,
                                           outcome.levers.front()) !=
                             answer.levers.back().levers.end();
    if (is_part) names.push_back(OutcomeText(outcome));
  }
  return fmt::format("together: {}\n", fmt::join(names, ", "));
}

}  // namespace

DeviceExplanation ExplainDevice(const ExplainedProgram& explained,
                                int64_t device_bytes) {
  DeviceExplanation answer{.steps = explained.steps,
                           .device_bytes = device_bytes,
                           .program = explained.program,
                           .run = explained.run_of(explained.program),
                           .outcome = {},
                           .need = {},
                           .peak = {},
                           .levers = {},
                           .fits = {}};
  const problems::DeviceSetting& setting = answer.program.setting;
  answer.outcome = graph::RunOnDevice(answer.run, setting.config, device_bytes);
  answer.need = problems::FindDeviceNeed(answer.run, setting);
  answer.peak = graph::LayoutAtPeak(answer.run, setting.config, device_bytes,
                                    answer.outcome);
  answer.levers = problems::FindLeverOutcomes(explained.run_of, answer.program,
                                              answer.need, explained.plans);
  for (const LeverOutcome& outcome : answer.levers) {
    answer.fits.push_back(graph::RunOnDevice(explained.run_of(outcome.program),
                                             outcome.program.setting.config,
                                             device_bytes)
                              .Fits());
  }
  return answer;
}

ordered_json ToJson(const DeviceExplanation& answer) {
  ordered_json json = {
      {"device_bytes", answer.device_bytes},
      {"torch_version",
       fmt::format("{}.{}", answer.program.setting.config.version.major,
                   answer.program.setting.config.version.minor)},
      {"fits", answer.outcome.Fits()}};
  json.update(ProgramJson(answer.program, answer.need));
  json["peak"] = PeakJson(answer);
  json["levers"] = ordered_json::array();
  for (size_t k = 0; k < answer.levers.size(); ++k) {
    const LeverOutcome& outcome = answer.levers[k];
    ordered_json entry = {{"levers", ordered_json::array()}};
    for (const DeviceLever lever : outcome.levers) {
      entry["levers"].push_back(LeverText(lever));
    }
    entry["gained_bytes"] = outcome.gained_bytes;
    entry["fits"] = static_cast<bool>(answer.fits[k]);
    entry.update(ProgramJson(outcome.program, outcome.need));
    json["levers"].push_back(std::move(entry));
  }
  return json;
}

std::string ToText(const DeviceExplanation& answer, size_t top,
                   const Terminal& terminal) {
  const problems::DeviceSetting& setting = answer.program.setting;
  std::string text = fmt::format(
      "\n{}: {} {} with PyTorch {}, {}\n",
      terminal.Bold("on a device of " +
                    graph::FormatBytes(answer.device_bytes)),
      RunName(answer), answer.outcome.Fits() ? "ends" : "runs out of memory",
      fmt::format("{}.{}", setting.config.version.major,
                  setting.config.version.minor),
      SettingText(setting));
  return text + PeakText(answer, top) + "\n" + LeversTable(answer, terminal) +
         TogetherText(answer);
}

}  // namespace acplan::cli
