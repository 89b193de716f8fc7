#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/indexed_vector.h"
#include "problems/model/joint_problem.h"
#include "problems/trace/policies/need_graph.h"
#include "problems/trace/policies/policy_paths.h"

namespace acplan::problems {

// The policies of a call as a unit, where only what something needs runs again.
//
// Data
//   A need graph; for each result r the bytes m_r that keeping it takes; groups
//   that may not be saved, or may not run again, and results that may not be kept.
// A policy is a set of groups that are saved. If something needs a result, it is kept
// if the group of its operator is saved, or else the operator runs again and needs what
// it reads. The policy discards
//   base - sum of m_r over results that are kept
// and costs the run-times of what runs again.

struct NeedChoices {
  int64_t base_bytes = 0;
  graph::IndexedVector<ResultId, int64_t> bytes = {};
  graph::IndexedVector<ResultId, graph::Flag> may_keep = {};
  graph::IndexedVector<graph::GroupId, graph::Flag> may_save = {};
  graph::IndexedVector<graph::GroupId, graph::Flag> may_rerun = {};
  // Policies that cost more are of no interest.
  double most_ms = std::numeric_limits<double>::infinity();

  auto operator<=>(const NeedChoices&) const = default;
};

using GroupFlags = graph::IndexedVector<graph::GroupId, graph::Flag>;

// All policies that no other one beats in both bytes and ms.
class NeedPolicies {
 public:
  // Policies, with the last move of each; kNone: it is not known what it is.
  struct List {
    std::vector<PolicyPoint> points = {};
    std::vector<MoveId> last_move = {};
    PolicyPaths paths = {};
    std::vector<graph::GroupId> group_of_step = {};
  };

  // Takes a list. `is_exact`: each point is its policy, and none has to stand for
  // others.
  NeedPolicies(List list, size_t groups, bool is_exact)
      : list_(std::move(list)), groups_(groups), is_exact_(is_exact) {}

  // Bytes and ms strictly ascending; none where no policy keeps the rules. Each
  // is the bytes and ms of its policy, but for calls with very many policies:
  // their points are relaxed, so that each policy costs no less than one that
  // discards as much, and the policy of a point is one that is near.
  const std::vector<PolicyPoint>& points() const { return list_.points; }
  // Returns whether a point is its policy.
  bool IsExact(size_t point) const {
    return coarse_ ? of_coarse_[point] < 0 : is_exact_;
  }

  // Returns the use that a policy makes of each group.
  GroupUses UsesOf(size_t point) const;

  // Returns about how many bytes the list takes.
  size_t MemoryBytes() const;

  // The facts about all policies that are not on a list of exact ones.
  struct Others {
    // The least cost of each that discards so many bytes; rises with them.
    std::function<double(int64_t)> least_ms;
    // How near to that points are to be, up to some ms.
    double step_ms = 0;
    double most_ms = 0;
    int64_t least_bytes = 0;  // none discards fewer
  };
  // Makes one list of relaxed policies and of some that are exact.
  static NeedPolicies WithExact(std::shared_ptr<const NeedPolicies> coarse,
                                List exact, const Others& others);

 private:
  List list_;
  size_t groups_;
  bool is_exact_;
  // Where the others come from, and which of them each point is; -1: none.
  std::shared_ptr<const NeedPolicies> coarse_ = nullptr;
  std::vector<int32_t> of_coarse_ = {};
};

// Finds the policies of a call.
NeedPolicies PoliciesOf(const NeedGraph& graph, const NeedChoices& choices);

}  // namespace acplan::problems
