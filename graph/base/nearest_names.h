#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// The up to `count` names of `known` that are nearest to `name`: names that end
// in it at a '.' boundary first, then by edit distance (Levenshtein, in bytes,
// of the last 128), ties by order in `known`. Of the others, names further away
// than half the length of the longer one are left out, so the result may be
// empty.
std::vector<std::string> NearestNames(std::string_view name,
                                      std::span<const std::string> known,
                                      int count = 3);

}  // namespace acplan::graph
