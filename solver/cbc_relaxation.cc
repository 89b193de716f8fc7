#include "solver/cbc_relaxation.h"

#include <ClpEventHandler.hpp>
#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "solver/clp_model.h"

namespace acplan::solver {
namespace {

// Two values of the objective that differ by no more than this, relative to their size,
// count as the same.
constexpr double kObjectiveTolerance = 1e-6;
// CBC's tolerances do no harm to integer costs up to this.
constexpr double kMostIntegerCost = 1e6;
// Clp's primal tolerances for the continuous columns of a solution. They are tried in this
// order until one leads to a solution.
constexpr double kPrimalTolerances[] = {1e-9, 1e-7};

// If a program has fewer rows and fewer columns than this, an assertion of OsiClp's
// crunch() takes a mark of Clp for a wrong index and ends the process.
constexpr size_t kLeastSize = 3;

// Returns the program in a form that CBC can read: without rows that constrain nothing, and
// with the last row repeated if the program is too small.
Milp ForCbc(Milp milp) {
  std::erase_if(milp.rows, [](const Milp::Row& row) {
    return IsFree(row) || IsEmpty(row);
  });
  for (Milp::Row& row : milp.rows) {
    std::erase_if(row.terms,
                  [](const Milp::Term& t) { return t.coefficient == 0; });
  }
  const bool is_small =
      !milp.rows.empty() &&
      std::max(milp.rows.size(), milp.columns.size()) < kLeastSize;
  while (is_small && milp.rows.size() < kLeastSize) {
    milp.rows.push_back(Milp::Row(milp.rows.back()));
  }
  for (Milp::Column& column : milp.columns) {
    const ColumnBounds bounds = BoundsOf(column);
    column.lower = bounds.lower;
    column.upper = bounds.upper;
  }
  return milp;
}

// A handler that stops Clp within a linear program, where CBC raises no event.
class LpHandler : public ClpEventHandler {
 public:
  explicit LpHandler(CbcWatch* watch) : watch_(watch) {}
  LpHandler(const LpHandler&) = default;
  LpHandler& operator=(const LpHandler&) = default;

  ClpEventHandler* clone() const override { return new LpHandler(*this); }
  int event(Event) override { return watch_->ShouldStop() ? 0 : -1; }

 private:
  CbcWatch* watch_;
};

}  // namespace

bool ObjectiveScale::IsClose(double a, double b) const {
  const double size =
      std::max({std::abs(a - offset), std::abs(b - offset), 1 / factor});
  return std::abs(a - b) <= kObjectiveTolerance * size;
}

ObjectiveScale ScaleFor(const Milp& milp) {
  const bool are_small_integers = std::all_of(
      milp.columns.begin(), milp.columns.end(), [](const Milp::Column& column) {
        return column.cost == 0 ||
               (column.is_integer && column.cost == std::round(column.cost) &&
                std::abs(column.cost) <= kMostIntegerCost);
      });
  // CBC exploits an objective that can only be an integer. It treats solutions whose
  // objectives differ by 1e-5 as equally good.
  return {.factor = are_small_integers ? 1 : CostFactor(milp),
          .offset = milp.objective_offset};
}

bool IsFree(const Milp::Row& row) {
  return row.lower == -kInfinity && row.upper == kInfinity;
}

bool IsEmpty(const Milp::Row& row) {
  return std::all_of(row.terms.begin(), row.terms.end(),
                     [](const Milp::Term& t) { return t.coefficient == 0; });
}

std::unique_ptr<OsiClpSolverInterface> LoadForCbc(const Milp& milp,
                                                  const ObjectiveScale& scale) {
  const ClpModel model(ForCbc(milp), scale.factor);
  auto osi = std::make_unique<OsiClpSolverInterface>();
  osi->messageHandler()->setLogLevel(0);
  osi->getModelPtr()->setLogLevel(0);
  osi->loadProblem(model.Matrix(), model.lower.data(), model.upper.data(),
                   model.cost.data(), model.row_lower.data(),
                   model.row_upper.data());
  osi->setObjSense(1);
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    if (milp.columns[j].is_integer) osi->setInteger(static_cast<int>(j));
  }
  return osi;
}

LpStatus SolveRelaxation(OsiClpSolverInterface& osi, CbcWatch& watch) {
  ClpSimplex& clp = *osi.getModelPtr();
  LpHandler handler(&watch);
  clp.passInEventHandler(&handler);
  osi.initialSolve();
  LpStatus status = StatusOf(clp);
  if (IsDoubtful(status)) {
    clp.allSlackBasis(true);
    osi.setHintParam(OsiDoPresolveInInitial, false, OsiHintDo);
    osi.setHintParam(OsiDoDualInInitial, false, OsiHintDo);
    osi.initialSolve();
    status = StatusOf(clp);
  }
  if (watch.ShouldStop() && status != LpStatus::kOptimal) {
    status = LpStatus::kStopped;
  }
  const ClpEventHandler none;
  clp.passInEventHandler(&none);
  return status;
}

std::optional<CheckedSolution> Polished(const Milp& milp,
                                        std::span<const double> x,
                                        CbcWatch& watch) {
  std::optional<CheckedSolution> rounded = Checked(milp, Rounded(milp, x));
  const bool any_continuous = std::any_of(
      milp.columns.begin(), milp.columns.end(), [](const Milp::Column& column) {
        return !column.is_integer && column.lower < column.upper;
      });
  if (!any_continuous) return rounded;

  Milp fixed = milp;
  for (size_t j = 0; j < x.size(); ++j) {
    Milp::Column& column = fixed.columns[j];
    if (!column.is_integer) continue;
    const ColumnBounds bounds = BoundsOf(column);
    column.lower = column.upper =
        std::clamp(std::round(x[j]), bounds.lower, bounds.upper);
    column.is_integer = false;
  }
  for (const double tolerance : kPrimalTolerances) {
    const auto osi = LoadForCbc(fixed, ScaleFor(fixed));
    osi->setDblParam(OsiPrimalTolerance, tolerance);
    if (SolveRelaxation(*osi, watch) != LpStatus::kOptimal) continue;
    std::optional<CheckedSolution> solved = Checked(
        milp, Rounded(milp, std::span(osi->getColSolution(), x.size())));
    // The continuous values of `rounded` belong to integers that are slightly off, so its
    // objective may be slightly too good.
    if (solved) return solved;
  }
  return rounded;
}

}  // namespace acplan::solver
