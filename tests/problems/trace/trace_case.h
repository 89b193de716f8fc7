#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/segments.h"
#include "graph/trace/trace.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/decisions.h"
#include "problems/trace/relaxation/witnesses.h"
#include "problems/trace/trace_search.h"
#include "tests/support/random_step.h"

namespace acplan::problems {

// A kind of random steps, and the options of a plan for them.
struct TraceCaseKind {
  std::string name;
  test_support::StepOptions step = {};
  bool restricts = false;  // patterns, units by name, a number of units
  bool skips = false;      // operators may be skipped
  bool joins = false;      // runs of modules may be units
};
std::vector<TraceCaseKind> TraceCaseKinds();

// A small random step as a trace problem. It cannot be copied: the problem
// refers to it.
class TraceCase {
 public:
  TraceCase(const TraceCaseKind& kind, unsigned seed);
  TraceCase(const TraceCase&) = delete;
  TraceCase& operator=(const TraceCase&) = delete;

  const graph::Trace trace;
  const graph::Profile profile;
  const graph::ModuleTree tree;
  JointProblemOptions options = {};
  TraceProblem problem;
};

// Returns some runs of a step, any two apart or one inside the other.
std::vector<graph::ModuleRun> RunsByChance(const graph::Trace& trace,
                                           std::mt19937& random);

// Every plan of a trace problem that the simulation accepts: each set of
// candidate modules that are not called inside one another, with each choice of
// the free groups to save.
struct TracePlans {
  struct Plan {
    int64_t peak_bytes = 0;
    double recompute_ms = 0;
    std::vector<graph::CheckpointedModule> modules = {};
  };
  std::vector<Plan> plans;  // the first is that without units
  int64_t refused = 0;

  int64_t LeastPeakBytes() const;
  // Returns nothing if no plan fits.
  std::optional<double> LeastMs(int64_t budget_bytes) const;
};

// Returns nothing if there are more plans than `most`.
std::optional<TracePlans> EnumeratePlans(const TraceProblem& problem,
                                         std::optional<int> max_units,
                                         int64_t most);

// Returns a random plan, which the simulation may refuse.
std::vector<graph::CheckpointedModule> PlanByChance(const TraceProblem& problem,
                                                    std::mt19937& random);

// Returns a description, in a line, of what is wrong with an answer; empty:
// nothing.
std::string Mismatch(const TracePlans& plans, int64_t budget_bytes,
                     const TraceProblem& problem,
                     const TraceSolution& solution);

// Does the same for a relaxation: a plan within the budget that keeps the
// decisions must cost at least its optimum. `least_ms`: of those plans.
std::string RelaxationMismatch(const TraceProblem& problem,
                               const Witnesses& witnesses,
                               const std::vector<Decision>& decisions,
                               int64_t budget_bytes, double least_ms);

// Returns random witnesses that the relaxation allows with these decisions.
Witnesses RandomWitnesses(const TraceProblem& problem,
                          const std::vector<Decision>& decisions,
                          std::mt19937& random);

// Returns some decisions that a plan keeps.
std::vector<Decision> RandomDecisions(const TraceProblem& problem,
                                      const TracePlans::Plan& plan,
                                      std::mt19937& random);

// Returns budgets at which answers change: about peaks of plans, ascending.
std::vector<int64_t> BudgetsAbout(const TracePlans& plans, unsigned seed);

}  // namespace acplan::problems
