#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>

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

  // Returns the limits of what plans may offload, or nothing without --offload. Throws
  // InputError for what is no rate or size, and for problems without offload.
  std::optional<problems::LinkLimits> Parse(
      const problems::PlanOptions& options) const;

  // Returns the same for a command all of whose plans may offload.
  std::optional<problems::LinkLimits> Parse() const;
};

}  // namespace acplan::cli
