#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cli/input/profile_input.h"
#include "graph/trace/link_time.h"
#include "problems/offload/movables.h"
#include "problems/plan_options.h"

namespace acplan::cli {

// The flags of the link to the host's memory.
struct LinkFlags {
  std::string offload;
  std::string host_memory;

  // Adds the flags. The texts name what may wait in the host's memory, and when.
  void AddTo(
      CLI::App& app,
      const std::string& what = "saved results and arguments of units",
      const std::string& when = "; on traces, if operators may be skipped");

  // Returns the limits of what plans may offload, or nothing without --offload. `device` is
  // the trace's, for "gpu". Throws InputError for what is no link or size, and for problems
  // without offload.
  std::optional<problems::LinkLimits> Parse(
      const problems::PlanOptions& options, std::string_view device) const;

  // Returns the same for a command all of whose plans may offload, on graphs that name no
  // device.
  std::optional<problems::LinkLimits> Parse(std::string_view device = "") const;
};

// Returns the name of a trace's device; "" for a profile.
std::string_view DeviceOf(const ProfileInput& input);

// Returns "25 GB/s each way", or the rates of the two ways.
std::string RatesText(const graph::LinkRates& rates);

}  // namespace acplan::cli
