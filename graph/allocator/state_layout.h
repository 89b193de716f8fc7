#pragma once

#include <cstdint>
#include <vector>

#include "graph/allocator/allocator_state.h"

namespace acplan::graph {

// Returns the parts of a state that decide what the next requests do: the blocks in the
// order of their addresses, with the numbers that `contents` has for allocated ones
// (indexed by block), and the ages of blocks if the rules ask for them. If the layouts of
// two states are equal, and their pools were made in one order, each treats the same
// requests as the other does, until a comparison with the device's size comes out
// differently.
//
// Addresses, counts and peaks do not count, and neither does the address space at the
// end of an expandable segment, which the device and the other blocks decide.
std::vector<int64_t> StateLayout(const AllocatorState& state,
                                 const std::vector<int32_t>& contents);

}  // namespace acplan::graph
