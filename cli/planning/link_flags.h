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

  void AddTo(CLI::App& app);

  // Returns the limits of what plans may offload, or nothing without --offload. Throws
  // InputError for what is no rate or size, and for problems without offload.
  std::optional<problems::LinkLimits> Parse(
      const problems::PlanOptions& options) const;
};

}  // namespace acplan::cli
