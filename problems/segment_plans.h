#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/segments.h"
#include "graph/trace/trace.h"
#include "problems/planner.h"
#include "solver/search.h"

namespace acplan::problems {

// Planning on a trace where runs of modules (graph/trace/segments.h) may be units.
//
// Which runs may be is a family: runs of which any two are apart or one inside the
// other, so that units remain calls of a forest, and each family is a trace problem
// of its own. There are more runs than fit in one family; so there are several
// families, and an answer is the best over all of them. What is proven is proven of
// plans whose units are modules and runs of one of the families.

enum class SegmentKind {
  kNone,    // no segments: one family, which is empty
  kAuto,    // runs of 2, 4, 8 ... children; and those of 3, 6, 12 ...
  kLength,  // runs of so many children
};

struct SegmentChoice {
  SegmentKind kind = SegmentKind::kNone;
  int32_t length = 0;
};

// The families of a trace: of the longest runs of children with a number for a
// name, as ModuleList and Sequential give them, each cut from its first child on
// into runs of the lengths named; the last may be shorter. Without runs of more
// than half of the longest one (rounded up), and without families that have no
// runs beyond those of another one, unless that leaves none: the family without
// runs.
std::vector<std::vector<graph::ModuleRun>> SegmentFamilies(
    const graph::Trace& trace, const SegmentChoice& choice);

// A trace with a family of segments, and planning on it. Is where it was made:
// the problem refers to it.
struct ProblemWithSegments {
  ProblemWithSegments(const graph::Trace& plain,
                      const std::vector<graph::ModuleRun>& family,
                      const PlanOptions& options);
  ProblemWithSegments(const ProblemWithSegments&) = delete;
  ProblemWithSegments& operator=(const ProblemWithSegments&) = delete;

  const graph::Trace trace;
  const graph::Profile profile;
  const graph::ModuleTree tree;
  const PlanningProblem problem;
};

// The units of a plan where the family has them, or none.
KnownUnits UnitsIn(const ProblemWithSegments& problem, const Plan& plan);

// One of each family, and its answers.
using ProblemsWithSegments =
    std::vector<std::unique_ptr<const ProblemWithSegments>>;

// Throws InputError as Aggregate and BuildPlanningProblem do. The options are for
// the memory model kTrace.
ProblemsWithSegments BuildProblemsWithSegments(const graph::Trace& trace,
                                               const PlanOptions& options,
                                               const SegmentChoice& choice);

// The least budget of all families, with the answer of each.
struct LeastWithSegments {
  LeastAnswer least;  // of the family that has it
  std::vector<LeastAnswer> of_family = {};
};
LeastWithSegments LeastPlan(const ProblemsWithSegments& problems,
                            const solver::SearchLimits& limits);

// The best plan of all families: its bound, its status and its effort are those of
// all. `known`: as PlanFor, for each family; none: nothing is known.
struct PlanWithSegments {
  Plan plan;
  const ProblemWithSegments* problem = nullptr;  // whose plan it is
};
PlanWithSegments PlanFor(const ProblemsWithSegments& problems,
                         int64_t budget_bytes,
                         const solver::SearchLimits& limits,
                         const std::vector<LeastAnswer>& known = {});

}  // namespace acplan::problems
