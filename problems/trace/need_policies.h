#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "problems/model/joint_problem.h"
#include "problems/trace/need_graph.h"

namespace acplan::problems {

// The policies of a call as a unit, where only what something needs runs again.
//
// Data
//   A need graph; for each result r the bytes m_r that keeping it takes; groups
//   that may not be saved, or may not run again, and results that may not be kept.
// A policy is a set of groups that are saved. What an operator makes that
// something needs is kept, if its group is saved, or else the operator runs again
// and needs what it reads. The policy discards
//   base - sum of m_r over results that are kept
// and costs the run-times of what runs again.

struct NeedChoices {
  int64_t base_bytes = 0;
  std::vector<int64_t> bytes = {};   // a result
  std::vector<char> may_keep = {};   // a result
  std::vector<char> may_save = {};   // a group
  std::vector<char> may_rerun = {};  // a group
  // Policies that cost more are of no interest.
  double most_ms = std::numeric_limits<double>::infinity();

  auto operator<=>(const NeedChoices&) const = default;
};

// What a policy does with a group.
enum class GroupUse : char { kNone, kSaved, kRunsAgain };

// All policies that no other one beats in both bytes and ms.
class NeedPolicies {
 public:
  // One group's part in a policy, and the one before it; -1: none.
  struct Move {
    int32_t previous;
    int32_t group;
    GroupUse use;
  };
  NeedPolicies(std::vector<PolicyPoint> points, std::vector<int32_t> last_move,
               std::vector<Move> moves, size_t groups)
      : points_(std::move(points)),
        last_move_(std::move(last_move)),
        moves_(std::move(moves)),
        groups_(groups) {}

  // Bytes and ms strictly ascending; none where no policy keeps the rules. Each
  // is the bytes and ms of its policy, but for calls with very many policies:
  // their points are relaxed, so that each policy costs no less than one that
  // discards as much, and the policy of a point is one that is near.
  const std::vector<PolicyPoint>& points() const { return points_; }

  // A group: what a policy does with it.
  std::vector<GroupUse> UsesOf(size_t point) const;

 private:
  std::vector<PolicyPoint> points_;
  std::vector<int32_t> last_move_;  // a point
  std::vector<Move> moves_;
  size_t groups_;
};

NeedPolicies PoliciesOf(const NeedGraph& graph, const NeedChoices& choices);

}  // namespace acplan::problems
