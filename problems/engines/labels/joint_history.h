#pragma once

#include <cstdint>
#include <vector>

#include "problems/engines/labels/forest_walk.h"
#include "problems/engines/labels/point_labels.h"
#include "problems/model/module_problem.h"
#include "solver/labels/label_history.h"

namespace acplan::problems {

// The history of labels: the units that were added, and the groups of each that
// a label recomputes. A unit is decided in steps, each of which takes some
// copies of a kind or leaves them. A label has a bit for each step since its
// last move. Every 32 steps, and at the end of a unit, the bits are folded into
// a move.
class JointHistory {
 public:
  // Starts a unit. Every label recomputes `settled[k]` copies of kind k.
  void BeginUnit(int node, std::vector<int> settled);

  // Starts a unit whose policies are points: PointLabel::decisions is the index of
  // the label's policy.
  void BeginUnitOfPoints(int node);

  // Adds a step that takes `copies` of a kind, and returns its bit in
  // PointLabel::decisions. If no bit is free, first folds the bits of `labels`.
  uint32_t AddStep(int kind, int copies, PointLabels& labels);

  // Folds the bits of the labels that have the unit.
  void EndUnit(PointLabels& labels);

  bool IsFull() const { return moves_.IsFull(); }

  // Drops, from time to time, the moves that no live label's history needs.
  void ForgetUnless(const LiveLabels<PointLabels>& live);

  // Returns the units of a label with the copies that each recomputes, in node
  // order. Leaves net bytes 0.
  std::vector<ChosenUnit> UnitsOf(const PointLabel& label) const;

 private:
  // Some steps in a label's history: `decisions` says which steps of an AddedUnit,
  // from `first_step` on, recompute their copies.
  struct Move {
    int32_t previous;
    int32_t unit;
    int32_t first_step;
    uint32_t decisions;
  };
  struct AddedUnit {
    struct Step {
      int kind, copies;
    };
    int node = 0;
    bool has_points = false;
    std::vector<int> settled;  // copies recomputed, by kind
    std::vector<Step> steps;
  };

  void Fold(PointLabels& labels);

  solver::LabelHistory<Move> moves_;
  std::vector<AddedUnit> units_;
  int first_open_step_ = 0;  // in the unit added last
};

}  // namespace acplan::problems
