#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/segments.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/planner.h"
#include "solver/search.h"

namespace acplan::problems {

// Planning on a trace where runs of modules (graph/trace/segments.h) may be
// units.
//
// The runs that may be units form a family, in which any two are apart or one
// is inside the other. So units remain calls of a forest, and each family is a
// trace problem of its own. There are more runs than fit in one family; so
// there are several families, and an answer is the best over all of them. A
// proof covers the plans whose units are modules and runs of one of the
// families.

enum class SegmentKind {
  kNone,    // no segments: one family, which is empty
  kAuto,    // runs of 2, 4, 8 ... children; and those of 3, 6, 12 ...
  kLength,  // runs of so many children
};

struct SegmentChoice {
  SegmentKind kind = SegmentKind::kNone;
  int32_t length = 0;
};

// Returns the families of a trace. Each family comes from the longest runs of
// children whose names are numbers, as in ModuleList and Sequential. Each run
// is cut, from its first child on, into runs of the lengths named; the last may
// be shorter. Leaves out runs of more than half of the longest one (rounded
// up), and a family whose runs are all in another one. If that leaves none,
// returns the family without runs.
std::vector<std::vector<graph::ModuleRun>> SegmentFamilies(
    const graph::Trace& trace, const SegmentChoice& choice);

// A trace with the runs of a family as modules, and the profile derived from it.
struct TraceWithRuns {
  // Throws InputError under the conditions of Aggregate.
  TraceWithRuns(const graph::Trace& plain,
                const std::vector<graph::ModuleRun>& family);
  TraceWithRuns(const TraceWithRuns&) = delete;
  TraceWithRuns& operator=(const TraceWithRuns&) = delete;

  const graph::Trace trace;
  const graph::Profile profile;
  const graph::ModuleTree tree;
};

// The planning problem of one family.
struct FamilyProblem {
  // The trace and profile to which the problem refers; null if the family has no
  // runs, and the problem refers to those of the question.
  std::unique_ptr<const TraceWithRuns> runs;
  PlanningProblem problem;
};

// One family or several. Without segments there is one, which has no runs.
using Families = std::vector<FamilyProblem>;

// Throws InputError under the conditions of Aggregate and BuildPlanningProblem.
// The options are for the memory model kTrace.
FamilyProblem BuildFamily(const graph::Trace& plain,
                          const std::vector<graph::ModuleRun>& family,
                          const PlanOptions& options);
Families BuildFamilies(const graph::Trace& trace, const PlanOptions& options,
                       const SegmentChoice& choice);

// Returns the units of a plan if the family has all of them, else none. Requires
// the memory model kTrace.
KnownUnits UnitsIn(const FamilyProblem& family, const Plan& plan);

// The least budget of all families, with the answer of each.
struct LeastOfFamilies {
  LeastAnswer least;  // of the family that has it
  std::vector<LeastAnswer> of_family = {};
};
LeastOfFamilies LeastPlan(const Families& families,
                          const solver::SearchLimits& limits);

// The units that meet the least budget, and the trace that has them. Under kTrace, of
// an answer with a plan.
struct LeastUnits {
  const graph::Trace* trace = nullptr;
  std::vector<graph::CheckpointedModule> modules = {};
};
LeastUnits UnitsOf(const Families& families, const LeastOfFamilies& least);

// The best plan of all families. Its bound, status and effort are those of all
// families together. `known_answers`: as in PlanFor, one for each family; empty
// if nothing is known. `series`: of each family, or empty.
struct PlanOfFamilies {
  Plan plan;
  size_t family = 0;                             // the family of this plan
  std::vector<std::vector<NearPlan>> near = {};  // by family
};
PlanOfFamilies PlanFor(const Families& families, int64_t budget_bytes,
                       const solver::SearchLimits& limits,
                       const std::vector<LeastAnswer>& known_answers = {},
                       const std::vector<SearchSeries>& series = {});

}  // namespace acplan::problems
