#include "problems/engines/labels/joint_history.h"

#include <algorithm>
#include <utility>

namespace acplan::problems {

namespace {

constexpr int kStepsAMove = 32;

}  // namespace

void JointHistory::BeginUnit(int node, std::vector<int> settled) {
  units_.push_back({.node = node, .settled = std::move(settled), .steps = {}});
  first_open_step_ = 0;
}

void JointHistory::BeginUnitOfPoints(int node) {
  units_.push_back(
      {.node = node, .has_points = true, .settled = {}, .steps = {}});
  first_open_step_ = 0;
}

uint32_t JointHistory::AddStep(int kind, int copies, PointLabels& labels) {
  std::vector<AddedUnit::Step>& steps = units_.back().steps;
  if (static_cast<int>(steps.size()) - first_open_step_ == kStepsAMove) {
    Fold(labels);
  }
  steps.push_back({kind, copies});
  return uint32_t{1} << (static_cast<int>(steps.size()) - first_open_step_ - 1);
}

void JointHistory::EndUnit(PointLabels& labels) { Fold(labels); }

void JointHistory::Fold(PointLabels& labels) {
  for (PointLabel& label : labels) {
    label.move =
        moves_.Add({label.move, static_cast<int32_t>(units_.size()) - 1,
                    first_open_step_, label.decisions});
    label.decisions = 0;
  }
  first_open_step_ = static_cast<int>(units_.back().steps.size());
}

void JointHistory::ForgetUnless(const LiveLabels<PointLabels>& live) {
  if (!moves_.IsLong()) return;
  moves_.Forget([&](auto apply) {
    for (LabelsByCount<PointLabels>* lists : live) {
      for (PointLabels& labels : *lists) {
        for (PointLabel& label : labels) {
          if (label.move >= 0) apply(label.move);
        }
      }
    }
  });
}

std::vector<ChosenUnit> JointHistory::UnitsOf(const PointLabel& label) const {
  std::vector<ChosenUnit> units;
  for (int32_t m = label.move; m >= 0; m = moves_[m].previous) {
    const Move& move = moves_[m];
    const AddedUnit& unit = units_[move.unit];
    if (units.empty() || units.back().node != unit.node) {
      units.push_back({.node = unit.node, .counts = unit.settled});
    }
    if (unit.has_points) {
      units.back().counts = {static_cast<int>(move.decisions)};
      continue;
    }
    for (int bit = 0; bit < kStepsAMove; ++bit) {
      if (!(move.decisions >> bit & 1)) continue;
      const AddedUnit::Step& step = unit.steps[move.first_step + bit];
      units.back().counts[step.kind] += step.copies;
    }
  }
  std::ranges::reverse(units);
  return units;
}

}  // namespace acplan::problems
