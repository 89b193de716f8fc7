#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "problems/model/module_problem.h"
#include "solver/labels/convex_cost.h"

namespace acplan::problems {

// The common parts of walks over a module problem with prefix structure: its
// bytes as integers, and lower bounds on the cost of the rest of a walk.

// The bytes of a module problem in fixed point: needs are rounded up, the bytes
// that units discard are rounded down. Vectors are indexed by node.
struct FixedProblem {
  double scale = 1;  // fixed-point units a byte
  std::vector<std::vector<solver::FixedKnot>> curve;
  std::vector<int64_t> held_bytes;
  std::vector<int64_t> need;          // at the node's own record; may be < 0
  std::vector<int64_t> subtree_need;  // largest over the subtree's records
  std::vector<int64_t> unit_need;     // as a unit, held bytes included
  std::vector<int64_t> need_after;    // the largest need of any later step
  std::vector<char> has_units;        // whether the subtree has a candidate
  int64_t largest_need = 0;           // at least 0
};

// Converts the bytes of a problem to fixed point. The scale is a power of two,
// at most `finest`, with which sums do not overflow.
FixedProblem ToFixedPoint(const ModuleProblem& problem, double finest);

// A lower bound on the cost of the rest of the walk as a convex function of the
// bytes that are still missing, largest_need - D: the recursion of the walk run
// backwards with every step made convex (docs/formulation.md). Every unit costs
// `unit_price` in addition. Refers to both problems, which must outlive the
// bound.
class CompletionBound {
 public:
  CompletionBound(const ModuleProblem& problem, const FixedProblem& fixed,
                  double unit_price);

  // Returns the bound on the whole walk.
  double AtRoot() const { return root_.At(fixed_.largest_need); }
  // Returns the price of the last byte of the whole walk, ms a fixed-point
  // byte.
  double PriceAtRoot() const;
  // Returns the bound on the walk after node i, which must have candidates in
  // its subtree.
  const solver::ConvexCost& After(int i) const { return after_[i]; }
  double unit_price() const { return unit_price_; }

 private:
  solver::ConvexCost WalkSiblings(int begin, int end, solver::ConvexCost rest);
  solver::ConvexCost Walk(int i, solver::ConvexCost rest);

  const ModuleProblem& problem_;
  const FixedProblem& fixed_;
  double unit_price_;
  size_t most_kept_ = 0;  // segments for each node
  std::vector<solver::ConvexCost> after_;
  solver::ConvexCost root_;
};

// Returns the price of the last byte that a whole problem has to discard, in
// ms, by the bound without a limit on units.
double PriceOfAByte(const ModuleProblem& problem);

// Returns the price of a unit for which the root bound under max_units is
// largest; 0 without max_units.
double BestUnitPrice(const ModuleProblem& problem, const FixedProblem& fixed);

}  // namespace acplan::problems
