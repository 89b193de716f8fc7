#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace acplan::graph {

// A piece of a segment that is there before a run.
struct BlockLayout {
  int64_t bytes = 0;
  int64_t asked_bytes = 0;  // that the program asked for
  // Its place among the blocks of the run; -1: it is not allocated.
  int32_t block = -1;
  bool is_mapped = true;  // has memory: always, in native segments
};

// A segment that is there before a run: its blocks from `address` on, without
// two free or two unmapped ones in a row. The address range of an expandable
// segment goes on behind them.
struct SegmentLayout {
  int64_t address = 0;
  int64_t stream = 0;
  std::optional<int64_t> private_pool = {};
  bool is_small = false;
  bool is_expandable = false;
  std::vector<BlockLayout> blocks = {};
};

}  // namespace acplan::graph
