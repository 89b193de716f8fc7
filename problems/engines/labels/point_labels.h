#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace acplan::problems {

// Labels that are points: the bytes discarded so far, their cost, and their
// history. Having discarded more for no more time is never worse, so of each
// list only the lower right boundary is kept: the envelope.

// Times are in fixed point, so that equal blocks give equal sums and their labels
// merge. The dearest unit costs about 1000 ms once times are scaled: 2^46 ticks.
inline constexpr double kTicksAMs = 0x1p36;

inline double ToMs(int64_t ticks) {
  return static_cast<double>(ticks) / kTicksAMs;
}

struct PointLabel {
  int64_t bytes, ticks;
  int32_t move;  // the last one in the label's history (joint_history.h); -1:
                 // none
  uint32_t decisions;  // a bit for each step since `move`, the first one lowest
};
using PointLabels =
    std::vector<PointLabel>;  // bytes and ticks strictly ascending

// Returns the envelope of both; among equal labels, those of `a`.
PointLabels Envelope(std::span<const PointLabel> a,
                     std::span<const PointLabel> b);

// Drops labels that have discarded less than `need`.
void CutTo(int64_t need, PointLabels& labels);

// Drops labels that have discarded more than another one that meets `need`, the
// largest need of any record to come.
void CapAt(int64_t need, PointLabels& labels);

// Drops labels that another one with fewer units beats. `lists` has an entry
// for each number of units.
void DropDearerCounts(std::vector<PointLabels>& lists);

}  // namespace acplan::problems
