#include "cli/planning/streams_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/terminal/text.h"

namespace acplan::cli {

std::optional<graph::StreamTimes> StreamTimesOf(
    const graph::Trace* trace,
    const std::vector<graph::CheckpointedModule>& units) {
  if (trace == nullptr || !HasStreams(*trace)) return std::nullopt;
  return TimeOnStreams(*trace, graph::Simulate(*trace, units).steps);
}

nlohmann::ordered_json ToJson(const graph::StreamTimes& times) {
  return {{"step_ms", times.step_ms},
          {"communication_ms", times.communication_ms},
          {"exposed_ms", times.exposed_ms}};
}

std::string StreamsText(const std::string& what,
                        const std::optional<graph::StreamTimes>& times) {
  if (!times) return "";
  return fmt::format("{}: the device takes {}, communication {}, exposed {}\n",
                     what, FormatMs(times->step_ms),
                     FormatMs(times->communication_ms),
                     FormatMs(times->exposed_ms));
}

}  // namespace acplan::cli
