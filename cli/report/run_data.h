#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "graph/run/training_run.h"
#include "graph/trace/trace.h"
#include "problems/plan/device_run.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// A training run on PyTorch's allocator in the form that report pages draw.

// A run to draw, with several settings of the allocator.
struct RunToDraw {
  std::vector<graph::RunShape> shapes;  // by RunMoment::shape
  graph::TrainingRun run;
  std::vector<problems::DeviceSetting> settings;
  std::optional<int64_t> device_bytes;  // nothing: without a limit
  // Returns where an event stands, as printed; null: places are not shown.
  std::function<std::string(int64_t event)> place_text = nullptr;
};

// Returns for each setting allocated and reserved bytes over time until the run ends or
// repeats, and the segments with their blocks at the peak of reserved bytes or where the
// run fails.
//
// At most kMostBlocks blocks are listed: smaller ones are joined with those behind them.
nlohmann::ordered_json DrawnRunsJson(const RunToDraw& drawing);

// Returns the settings to draw: native and expandable segments, or one of them as a plan's
// device names it, if there is one.
std::vector<problems::DeviceSetting> SettingsToDraw(
    const std::optional<problems::PlanDevice>& device);

// Returns the run of a plan's steps (without units: without a plan) with native and
// with expandable segments. A plan's own device limits it, with the plan's settings in
// place of the kind of segments that it names; else no device does.
nlohmann::ordered_json RunsOnDeviceJson(const graph::Trace& trace,
                                        const problems::Plan& plan);

inline constexpr size_t kMostBlocks = 2500;

// Returns the kinds of a block, beside those of KindNames: free memory that can be given
// back, and holes.
nlohmann::ordered_json FreeKindNames();

}  // namespace acplan::cli
