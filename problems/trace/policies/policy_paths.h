#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/profile/sac_statistics.h"

namespace acplan::problems {

// The use that a policy makes of a group.
enum class GroupUse : char { kNone, kSaved, kRunsAgain };
using GroupUses = graph::IndexedVector<graph::GroupId, GroupUse>;

enum class MoveId : int32_t {};  // in PolicyPaths

// The uses of the steps that a label of a walk has made since its last move: two bits a
// step, the first one lowest.
using RecentUses = uint32_t;

// The paths of policies through the steps of a walk, as a tree: the first uses that
// paths share are there once. Walks make millions of labels, so a move has the uses of
// many steps: a label gathers its own until a move ends, and adds them then.
class PolicyPaths {
 public:
  static RecentUses With(RecentUses recent, size_t step, GroupUse use) {
    return recent | static_cast<RecentUses>(use)
                        << (kBitsAUse * (step % kStepsAMove));
  }
  // Returns whether the labels of a walk of so many steps add a move after this one.
  static bool EndsMove(size_t step, size_t steps) {
    return (step + 1) % kStepsAMove == 0 || step + 1 == steps;
  }

  size_t MemoryBytes() const { return moves_.size() * sizeof(Move); }

  MoveId Add(MoveId previous, RecentUses recent) {
    return moves_.Add({previous, recent});
  }

  // Returns the use that the moves of a path make of a step.
  static GroupUse UseOf(const std::vector<RecentUses>& moves, size_t step) {
    constexpr RecentUses kOneUse = (1U << kBitsAUse) - 1;
    return static_cast<GroupUse>(moves[step / kStepsAMove] >>
                                     (kBitsAUse * (step % kStepsAMove)) &
                                 kOneUse);
  }

  // Returns the moves of a path, the first one first.
  std::vector<RecentUses> MovesOf(MoveId last) const;

  // Adds a path of another tree. Returns its last move.
  MoveId AddPath(const std::vector<RecentUses>& moves);

  // Returns the use of each of `groups` groups, if the steps belong to these.
  GroupUses UsesOf(MoveId last,
                   const std::vector<graph::GroupId>& group_of_step,
                   size_t groups) const;

 private:
  static constexpr size_t kStepsAMove = 16;
  static constexpr size_t kBitsAUse = 2;

  struct Move {
    MoveId previous;
    RecentUses uses;
  };
  graph::IndexedVector<MoveId, Move> moves_;
};

}  // namespace acplan::problems
