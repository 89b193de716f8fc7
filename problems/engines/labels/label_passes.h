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
// the cost and a limit on the labels kept at a module. The first two keep few
// labels and find a good plan. Then the threshold starts just above the bound
// and moves away from it until a pass that dropped nothing for its width finds
// a plan below it, which is optimal, or reaches the best plan, which then is: a
// search whose threshold is near the optimum keeps far fewer labels than one
// whose best plan is not.

// Says, given the labels made in this pass, whether to stop.
using PassCheck = std::function<solver::StoppedBy(int64_t)>;

struct PassResult {
  // The plan found, if one below the threshold was.
  std::optional<std::vector<ChosenUnit>> units;
  // Lower bound on all that the width dropped.
  double least_dropped = std::numeric_limits<double>::infinity();
  int64_t labels = 0;  // made
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
};

struct LabelSearch {
  // One pass for plans that cost less than `threshold`.
  std::function<PassResult(double threshold, size_t width, const PassCheck&)>
      run;
  // A plan found made no dearer.
  std::function<std::vector<ChosenUnit>(std::vector<ChosenUnit>)> improve;
  std::function<double(const std::vector<ChosenUnit>&)> cost;
  // Units known before that keep every record, if any.
  std::vector<ChosenUnit> known = {};
  // Says that `known` is thought to be nearly optimal: then the search goes
  // straight for the proof.
  bool known_is_near = false;
};

// `root_bound`: no plan costs less; +infinity: there is none. Optimal means to
// 1e-9 of the objective.
ModuleSolution SearchByPasses(const ModuleProblem& problem, double root_bound,
                              const solver::SearchLimits& limits,
                              const LabelSearch& search);

}  // namespace acplan::problems
