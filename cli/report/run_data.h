#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "graph/trace/trace.h"
#include "problems/plan/device_run.h"
#include "problems/plan/plan.h"

namespace acplan::cli {

// A training run on PyTorch's allocator in the form that report pages draw.

// Returns the run of a plan's steps (without units: without a plan) with native and
// with expandable segments: allocated and reserved bytes over time until the run
// repeats, and the segments with their blocks at the peak of reserved bytes or where
// the run fails. A plan's own device limits it, with the plan's settings in place of
// the kind of segments that it names; else no device does.
//
// At most kMostBlocks blocks are listed: smaller ones are joined with those behind them.
nlohmann::ordered_json RunsOnDeviceJson(const graph::Trace& trace,
                                        const problems::Plan& plan);

inline constexpr size_t kMostBlocks = 2500;

// Returns the kinds of a block, beside those of KindNames: free memory that can be given
// back, and holes.
nlohmann::ordered_json FreeKindNames();

}  // namespace acplan::cli
