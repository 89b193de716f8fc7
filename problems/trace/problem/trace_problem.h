#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/needs.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/model/joint_problem.h"
#include "problems/model/unit_forest.h"
#include "problems/trace/policies/need_graph.h"
#include "problems/trace/policies/need_policies.h"

namespace acplan::problems {

// Units and operators under the exact memory model: the simulated step of a
// trace (graph/trace/simulation.h) is the constraint, and what runs again in it the
// objective.
//
// Data
//   A trace; its calls c of modules that may be units, a forest by nesting; for
//   each the groups g of operators that a policy may decide, with t_cg ms of
//   operators that run again (none beyond where the recomputation stops).
// Variables
//   y_m in {0, 1}       module m is a unit; no unit is inside another
//   s_mg in {0, 1}      its policy saves group g
// Model
//   minimise   sum over calls c of units and groups g of t_cg (1 - s_g)
//   subject to the simulated peak of (y, s) <= B
//
// Where operators may be skipped, what runs again is decided by what is saved: an
// operator runs again if it is not saved and something needs its result, backward
// or an operator that runs again (graph/trace/needs.h). Then the objective is a
// function of the set of groups that a unit saves, and no sum over them
// (need_policies.h).
//
// The simulated peak is no sum over units: a storage is live as long as any of
// its holders holds it. The problem is solved by relaxations that are sums
// (relaxation.h), and by simulating their plans (trace_search.h).

// A call of a module that may be a unit.
struct CandidateCall {
  int32_t call = 0;     // in Trace::calls
  int module_node = 0;  // in the module tree
  int parent = -1;      // the candidate directly around it; -1: none
  int last = 0;         // the last candidate inside, or itself
  int node = 0;         // in TraceProblem::forest
  // The time at which it runs again: when backward first asks for something that
  // was saved in it.
  int32_t first_request = graph::kNever;
  int32_t stop = 0;       // the operator before which it stops
  int32_t frame_end = 0;  // when its frame lets go of the arguments
  bool is_innermost = true;
  // It has no policy, so everything runs again: its module has no groups, because
  // it can run again as a whole only.
  bool is_whole = false;
  // What saving an operator keeps: storages, ascending, with the group.
  std::vector<std::pair<int32_t, int>> results = {};
  // Where operators may be skipped: what it needs when it runs again, in
  // TraceProblem::need_graphs, -1: it has no policy; and the storages of its
  // results, ascending, with their numbers there.
  int needs = -1;
  std::vector<std::pair<int32_t, int>> needed = {};
};

struct TraceProblem {
  const graph::Trace* trace = nullptr;
  graph::Simulator simulator;
  std::vector<CandidateCall> candidates = {};  // in pre-order
  std::vector<int> candidate_of = {};  // a call: the innermost around, or -1
  // Indexed by node of the module tree: its first candidate, or -1.
  std::vector<int> first_of_node = {};
  std::vector<graph::OperatorGroups> groups = {};  // a node of the module tree
  // A storage: until when others than autograd hold it without units.
  std::vector<int32_t> held = {};
  // A storage: what autograd saves of it, in Trace::saved, and the candidates
  // whose argument and whose operators' result it is.
  std::vector<std::vector<int32_t>> saved_of = {};
  std::vector<std::vector<int>> frames_of = {};
  std::vector<std::vector<int>> makers_of = {};
  // The walk over the calls (call_walk.h).
  ModuleProblem forest = {};
  std::vector<int> candidate_at = {};  // a node, -1: none
  std::vector<int> record_of = {};     // a time: the node whose record it is in
  // A time, as BytesOfRank (trace_memory.h).
  std::vector<int64_t> bytes_of_rank = {};
  bool has_repeated_calls = false;  // of a candidate module
  // Operators may be skipped.
  bool may_skip = false;
  // Of the trace, if they may.
  std::optional<graph::NeedDrivenPolicies> need_driven = {};
  std::vector<NeedGraph> need_graphs = {};  // all different
  // A node of the module tree and a group: whether a policy has a choice.
  std::vector<std::vector<char>> is_choice = {};
  // Modules that could not be units, why, and the bytes that therefore stay.
  WarningsByType no_units = {};
  std::vector<std::string> warnings = {};
};

// Refers to the trace, which must outlive it. `profile` and `tree` are those of
// the trace (graph/trace/aggregate.h). Options as for BuildJointProblem; the budget is
// not used. Throws InputError as that does.
TraceProblem BuildTraceProblem(const graph::Trace& trace,
                               const graph::Profile& profile,
                               const graph::ModuleTree& tree,
                               const JointProblemOptions& options);

// Run-time of what a call runs again where its policy saves nothing: its
// operators up to where it stops, and casts by autocast from before it.
double WholeMs(const TraceProblem& problem, const CandidateCall& candidate);

// Run-time of what a call runs again, for each group of its operators; all zero
// for a call without a policy.
std::vector<double> GroupMs(const TraceProblem& problem,
                            const CandidateCall& candidate);

// The simulated step of a rank with these units, or nothing where PyTorch
// refuses to run them.
std::optional<graph::Simulation> SimulatedUse(
    const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& modules);

}  // namespace acplan::problems
