#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/stream_times.h"
#include "graph/trace/trace.h"

namespace acplan::cli {

// Returns the times of a step with these units on the device's streams; nothing if the trace
// is absent or has one stream.
std::optional<graph::StreamTimes> StreamTimesOf(
    const graph::Trace* trace,
    const std::vector<graph::CheckpointedModule>& units);

nlohmann::ordered_json ToJson(const graph::StreamTimes& times);

// Returns a line on the step that `what` names; "" for no times.
std::string StreamsText(const std::string& what,
                        const std::optional<graph::StreamTimes>& times);

}  // namespace acplan::cli
