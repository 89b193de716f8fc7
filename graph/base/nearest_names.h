#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// Returns up to `count` names of `known_names` that are nearest to `name`: first names that end
// in it at a '.' boundary, then others by edit distance (Levenshtein, in bytes, of the last
// 128), ties by the letters that both begin with, then in the order of `known_names`. Other names whose distance exceeds half the length of
// the longer name are left out, so the result may be empty.
std::vector<std::string> NearestNames(std::string_view name,
                                      std::span<const std::string> known_names,
                                      int count = 3);

}  // namespace acplan::graph
