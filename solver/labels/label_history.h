#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace acplan::solver {

// The moves that led to labels, as a tree: a Move has a member `previous`, the index of the
// move before it, or -1. Labels hold the index of their last move.
template <typename Move>
class LabelHistory {
 public:
  int32_t Add(const Move& move) {
    moves_.push_back(move);
    return static_cast<int32_t>(moves_.size()) - 1;
  }

  const Move& operator[](int32_t index) const { return moves_[index]; }

  // Returns whether the history is so long that Forget should be called.
  bool IsLong() const { return moves_.size() > most_; }
  // Returns whether the history takes more memory than a search should.
  bool IsFull() const { return moves_.size() > kMost; }

  // Drops the moves that no live label's history needs and renumbers the rest.
  // for_each_label(apply) calls apply(int32_t&) with the last move of every
  // live label that has one; it is called twice.
  template <typename ForEachLabel>
  void Forget(const ForEachLabel& for_each_label) {
    constexpr int32_t kForgotten = -2;
    constexpr int32_t kNeeded = -1;
    std::vector<int32_t> place(moves_.size(), kForgotten);
    for_each_label([&](int32_t& last) { place[last] = kNeeded; });
    for (size_t m = moves_.size(); m-- > 0;) {
      if (place[m] == kNeeded && moves_[m].previous >= 0) {
        place[moves_[m].previous] = kNeeded;
      }
    }
    size_t kept_count = 0;
    for (size_t m = 0; m < moves_.size(); ++m) {
      if (place[m] == kForgotten) continue;
      place[m] = static_cast<int32_t>(kept_count);
      Move move = moves_[m];
      if (move.previous >= 0) move.previous = place[move.previous];
      moves_[kept_count++] = move;
    }
    moves_.resize(kept_count);
    for_each_label([&](int32_t& last) { last = place[last]; });
    most_ = std::max(kFewest, 2 * kept_count);
  }

 private:
  static constexpr size_t kFewest = 1'000'000;
  static constexpr size_t kMost = size_t{1} << 27;

  std::vector<Move> moves_;
  size_t most_ = kFewest;
};

}  // namespace acplan::solver
