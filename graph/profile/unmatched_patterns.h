#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// Throws InputError that names the nearest operators if a shell pattern of a flag matches none
// of these names. An operator may be called as in PyTorch: "torch.ops.aten.mm.default".
void RefuseUnmatched(const std::vector<std::string>& patterns,
                     const std::set<std::string>& names, std::string_view flag);

}  // namespace acplan::graph
