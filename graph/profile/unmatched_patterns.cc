#include "graph/profile/unmatched_patterns.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "graph/profile/sac_statistics.h"

namespace acplan::graph {
namespace {

// Returns the name that a profile has for an operator of PyTorch.
std::string_view PlainName(std::string_view name) {
  for (const std::string_view prefix : {"torch.ops.", "aten.", "aten::"}) {
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  }
  if (name.ends_with(".default")) name.remove_suffix(8);
  return name;
}

}  // namespace

void RefuseUnmatched(const std::vector<std::string>& patterns,
                     const std::set<std::string>& names,
                     std::string_view flag) {
  for (const std::string& pattern : patterns) {
    if (std::ranges::any_of(names, [&](const std::string& name) {
          return MatchesPattern(name, pattern);
        })) {
      continue;
    }
    const std::vector<std::string> known_names(names.begin(), names.end());
    std::vector<std::string> near = NearestNames(pattern, known_names);
    if (near.empty()) near = NearestNames(PlainName(pattern), known_names);
    throw InputError(fmt::format(
        "{}: expected a pattern that matches an operator, found {}{}", flag,
        Quoted(pattern, 200),
        near.empty() ? ""
                     : fmt::format("; nearest: {}", fmt::join(near, ", "))));
  }
}

}  // namespace acplan::graph
