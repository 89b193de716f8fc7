#include "cli/planning/time_errors_text.h"

#include <fmt/format.h>

#include "graph/base/message_text.h"

namespace acplan::cli {

std::string TimeErrorsText(const graph::DeviceInfo& device) {
  if (!device.time_errors) return "";
  const std::string name = graph::OneLine(device.name);
  if (device.time_errors->median == 0) {
    return fmt::format(
        "times           predicted for {}, on which no step was measured\n",
        name);
  }
  return fmt::format(
      "times           predicted for {}: half of the steps that were measured "
      "are within {:.0f}%, nine in ten within {:.0f}%\n",
      name, 100 * device.time_errors->median, 100 * device.time_errors->ninety);
}

}  // namespace acplan::cli
