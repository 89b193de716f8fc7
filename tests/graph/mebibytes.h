#pragma once

#include <cstdint>

namespace acplan::graph {

constexpr int64_t kMiB = int64_t{1} << 20;

}  // namespace acplan::graph
