#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

#include "graph/profile/profile.h"
#include "graph/trace/trace.h"

namespace acplan::cli {

// The value of a PROFILE argument.
struct ProfileInput {
  graph::Profile profile;
  std::optional<graph::Trace> trace;  // the trace that the profile is derived
                                      // from

  const graph::Trace* TraceIfAny() const { return trace ? &*trace : nullptr; }
};

// Reads a profile, or a trace and derives its profile
// (graph/trace/aggregate.h). Throws InputError, naming the file, under the
// conditions of ReadProfile, ReadTrace and Aggregate.
ProfileInput ReadProfileOrTrace(const std::filesystem::path& path);
// Parses the text of the file.
ProfileInput ParseProfileOrTrace(std::string_view text,
                                 const std::filesystem::path& path);

// Returns the profile of a trace. Throws InputError, naming the file, under the
// conditions of Aggregate.
graph::Profile ProfileOf(const graph::Trace& trace,
                         const std::filesystem::path& path);

}  // namespace acplan::cli
