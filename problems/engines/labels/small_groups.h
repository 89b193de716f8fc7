#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "problems/model/joint_problem.h"
#include "problems/model/module_problem.h"

namespace acplan::problems {

// A joint problem divided into large and small groups of operators. The bytes
// of small groups (the statistics of a norm: 16 KiB beside 112 MiB) make nearly
// all labels, and hardly any difference to a plan. If policies are points,
// points as near to each other form clusters, and the choice of a point within
// its cluster takes the place of the choice of small groups.
class SmallGroups {
 public:
  // Divides a problem. Groups of less than 2^-13 of the largest need are small.
  // `price`, ms a byte, determines which of them are cheap.
  SmallGroups(const JointProblem& problem, double price);

  // Returns the problem in which small groups are not decided, but recomputed
  // if that is cheap and else saved: a restriction, each plan of which is one
  // of the problem. Returns nullopt if no group is small.
  std::optional<JointProblem> Priced() const;

  // Returns the problem in which small groups are recomputed for nothing: a
  // relaxation, so its bound is one for the problem.
  JointProblem Free() const;

  // Returns the problem in which only the small groups of a plan's units remain
  // to be decided. `units` are a plan for `priced`.
  JointProblem SmallOnly(const JointProblem& priced,
                         const std::vector<ChosenUnit>& units) const;

  // Returns a plan for `priced` as a plan for the problem.
  std::vector<ChosenUnit> FromPriced(
      const std::vector<ChosenUnit>& units) const;

  // Returns the plan for the problem with the large groups of `units` and the
  // small groups of `small_units`, a plan for SmallOnly(priced, units). Units
  // that `small_units` lacks are no units of the result.
  std::vector<ChosenUnit> Combined(
      const std::vector<ChosenUnit>& units,
      const std::vector<ChosenUnit>& small_units) const;

 private:
  bool IsSmall(const GroupKind& kind) const { return kind.bytes <= few_bytes_; }
  bool IsCheap(const GroupKind& kind) const {
    return kind.ms < price_ * static_cast<double>(kind.bytes);
  }
  std::vector<size_t> CheapPoints(const std::vector<PolicyPoint>& points) const;
  ChosenUnit WithSmall(const ChosenUnit& large, const ChosenUnit* small) const;

  const JointProblem& problem_;
  double price_;
  int64_t few_bytes_;
};

}  // namespace acplan::problems
