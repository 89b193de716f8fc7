#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace acplan::problems {

// Labels that are points: bytes discarded so far, what that cost, and how it came
// about. Having discarded more for no more time is never worse, so of a list only
// the lower right boundary is kept: the envelope.

// Times are in fixed point, so that equal blocks give equal sums and their labels
// merge. The dearest unit costs about 1000 ms once times are scaled: 2^46 ticks.
inline constexpr double kTicksAMs = 0x1p36;

inline double ToMs(int64_t ticks) {
  return static_cast<double>(ticks) / kTicksAMs;
}

struct PointLabel {
  int64_t bytes, ticks;
  int32_t move;  // the last one in its history (joint_history.h); -1: none
  uint32_t
      taken;  // of the steps since `move`, a bit each, the first the lowest
};
using PointLabels =
    std::vector<PointLabel>;  // bytes and ticks strictly ascending

// Returns the envelope of both; of equal labels, a's.
PointLabels Envelope(std::span<const PointLabel> a,
                     std::span<const PointLabel> b);

// Drops labels that have discarded less than `need`.
void CutTo(int64_t need, PointLabels& labels);

// Drops labels that have discarded more than another that meets `need`, the most
// that any record to come asks for.
void CapAt(int64_t need, PointLabels& labels);

// `lists` has an entry for each number of units. Drops labels that another with
// fewer units beats.
void DropDearerCounts(std::vector<PointLabels>& lists);

}  // namespace acplan::problems
