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

// A trace with the runs of a family as modules, and the profile derived from it.
struct TraceWithRuns {
  // Throws InputError as Aggregate does.
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
  // What the problem refers to; null if that is the profile or trace of the question:
  // the family has no runs.
  std::unique_ptr<const TraceWithRuns> runs;
  PlanningProblem problem;
};

// One family or several. Without segments there is one, which has no runs.
using Families = std::vector<FamilyProblem>;

// Throws InputError as Aggregate and BuildPlanningProblem do. The options are for
// the memory model kTrace.
FamilyProblem BuildFamily(const graph::Trace& plain,
                          const std::vector<graph::ModuleRun>& family,
                          const PlanOptions& options);
Families BuildFamilies(const graph::Trace& trace, const PlanOptions& options,
                       const SegmentChoice& choice);

// Returns the units of a plan if the family has them, or none. Under kTrace.
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

// The best plan of all families: its bound, its status and its effort are those of
// all. `known`: as PlanFor, for each family; none: nothing is known.
struct PlanOfFamilies {
  Plan plan;
  size_t family = 0;  // whose plan it is
};
PlanOfFamilies PlanFor(const Families& families, int64_t budget_bytes,
                       const solver::SearchLimits& limits,
                       const std::vector<LeastAnswer>& known = {});

}  // namespace acplan::problems
