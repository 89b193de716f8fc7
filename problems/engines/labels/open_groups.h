#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "problems/engines/labels/point_labels.h"
#include "problems/model/joint_problem.h"
#include "solver/labels/convex_cost.h"

namespace acplan::problems {

// Determines which groups of a unit have to be decided label by label. The
// completion bound settles all but a handful of some thirty groups, by their
// reduced costs.

// The policies of a unit with times in ticks.
struct TickPolicies {
  struct Kind {
    int64_t bytes, ticks;
    int count;
    double Slope() const {
      return static_cast<double>(ticks) / static_cast<double>(bytes);
    }
  };
  // A whole policy, beyond the base.
  struct Point {
    int64_t bytes, ticks;
  };
  int64_t base_bytes = 0;
  int64_t base_ticks = 0;
  std::vector<Kind> kinds = {};
  std::vector<Point> points = {};  // instead of kinds; the first is 0, 0
  // The kinds, or the hull of the points, as a convex curve, ms a byte.
  std::vector<solver::CostSegment> relaxed = {};
};

TickPolicies ToTicks(const JointProblem::Policies& policies);

// The limits of a pass for its labels.
struct PassBar {
  double threshold;      // only plans that cost less are of interest
  double credit;         // the bound's charge for remaining units, ms
  int64_t largest_need;  // of all records
};

// Copies of a kind that the bound does not settle.
struct OpenKind {
  int kind;
  int64_t bytes, ticks;
  int copies;
  double distance;  // from the relaxation's price, ms
};

// A policy that the bound does not rule out.
struct OpenPoint {
  int place;  // among the unit's points
  int64_t bytes, ticks;
};

// A unit's groups before any of them is decided.
struct OpenedUnit {
  PointLabels labels;  // those that may lead to a better plan
  int64_t bytes = 0;   // of the copies settled to be recomputed
  int64_t ticks = 0;
  std::vector<int> settled;            // by kind: the number of these copies
  std::vector<OpenKind> kinds;         // the most settled first
  std::vector<OpenPoint> points = {};  // bytes ascending
};

// Opens a unit for `labels`, which have the unit's base. `relaxed` is the bound
// on the walk after the unit, together with the relaxation of all of its
// groups.
OpenedUnit OpenUnit(const TickPolicies& unit, const solver::ConvexCost& relaxed,
                    const PassBar& bar, PointLabels labels);

// Adds each of some points to each label. Returns, in place of `labels`, the
// sums that no other beats and that may lead to a better plan. `rest` is the
// bound on the walk after the unit.
PointLabels SumsWith(const std::vector<OpenPoint>& points,
                     const PointLabels& labels, const solver::ConvexCost& rest,
                     const PassBar& bar);

// The bounds on the rest for each open kind. Must be requested in ascending
// order of kinds. Refers to `kinds`.
class BoundsByKind {
 public:
  struct Bounds {
    const solver::ConvexCost& from_kind;   // the kind and all after it
    const solver::ConvexCost& after_kind;  // all after the kind
  };

  BoundsByKind(const std::vector<OpenKind>& kinds, solver::ConvexCost after);

  // Returns bounds that hold until the next call.
  Bounds At(size_t kind);

 private:
  std::vector<solver::ConvexCost> OfBlock(size_t block) const;

  const std::vector<OpenKind>& kinds_;
  std::vector<solver::ConvexCost> from_block_;  // the last one is for the walk
                                                // after the unit
  size_t block_ = std::numeric_limits<size_t>::max();
  std::vector<solver::ConvexCost> in_block_;
};

}  // namespace acplan::problems
