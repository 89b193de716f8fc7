#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "problems/model/module_problem.h"
#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// A label-setting search as passes over the problem, each with a threshold on
// the cost and a limit on the labels kept at a module, the width. The first two
// passes keep few labels and find a good plan. Then the threshold starts just
// above the bound and moves away from it, until a pass that dropped nothing for
// its width finds a plan below the threshold, which is optimal, or the
// threshold reaches the best plan, which then is optimal. A search whose
// threshold is near the optimum keeps far fewer labels than one whose best plan
// is not.

// Returns the limit that stops the pass, if any, given the number of its
// labels.
using PassCheck = std::function<solver::StoppedBy(int64_t)>;

struct PassResult {
  // The plan, if there is one below the threshold.
  std::optional<std::vector<ChosenUnit>> units;
  // A lower bound on the cost of all plans that the width dropped.
  double least_dropped = std::numeric_limits<double>::infinity();
  int64_t labels = 0;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
};

struct LabelSearch {
  // Runs one pass for plans that cost less than `threshold`.
  std::function<PassResult(double threshold, size_t width, const PassCheck&)>
      run;
  // Returns a plan improved so that it costs no more.
  std::function<std::vector<ChosenUnit>(std::vector<ChosenUnit>)> improve;
  std::function<double(const std::vector<ChosenUnit>&)> cost;
  // The units of a plan known before that keeps every record, if any.
  std::vector<ChosenUnit> known_units = {};
  // True if `known_units` is probably nearly optimal: then the search goes
  // straight for the proof.
  bool known_is_near = false;
};

// Searches by passes. `root_bound`: no plan costs less; +infinity: there is no
// plan. The status is optimal if the proof holds to 1e-9 of the objective.
ModuleSolution SearchByPasses(const ModuleProblem& problem, double root_bound,
                              const solver::SearchLimits& limits,
                              const LabelSearch& search);

}  // namespace acplan::problems
