#include "cli/input/profile_input.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "cli/input/plan_input.h"
#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/trace/aggregate.h"

namespace acplan::cli {

ProfileInput ReadProfileOrTrace(const std::filesystem::path& path) {
  return ParseProfileOrTrace(graph::ReadJsonText(path), path);
}

ProfileInput ParseProfileOrTrace(std::string_view text,
                                 const std::filesystem::path& path) {
  if (text.find("\"acplan.trace\"") == std::string::npos) {
    RefuseTable(text, path, "a profile or a trace");
    return {.profile = graph::ParseProfile(text, path.string()), .trace = {}};
  }
  graph::Trace trace = graph::ParseTrace(text, path.string());
  graph::Profile profile = ProfileOf(trace, path);
  return {.profile = std::move(profile), .trace = std::move(trace)};
}

graph::Profile ProfileOf(const graph::Trace& trace,
                         const std::filesystem::path& path) {
  try {
    return graph::Aggregate(trace);
  } catch (const InputError& error) {
    throw InputError(
        fmt::format("{}: {}", graph::OneLine(path.string()), error.what()));
  }
}

}  // namespace acplan::cli
