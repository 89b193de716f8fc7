#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/gathers.h"
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

enum class CandidateId : int32_t {};  // in TraceProblem::candidates
enum class TreeNodeId : int32_t {};   // in the module tree
enum class WalkNodeId : int32_t {};   // in TraceProblem::forest
enum class NeedGraphId : int32_t {};  // in TraceProblem::need_graphs

// A call of a module that may be a unit.
struct CandidateCall {
  graph::CallId call = {};
  TreeNodeId module_node = {};
  CandidateId parent = graph::kNone;  // the candidate directly around it
  CandidateId last = {};              // the last candidate inside, or itself
  WalkNodeId node = {};
  // The time at which it runs again: when backward first asks for something that
  // was saved in it.
  graph::Time first_request = graph::kNever;
  graph::Time stop = 0;       // the start of the operator before which it stops
  graph::Time frame_end = 0;  // when its frame lets go of the arguments
  bool is_innermost = true;
  // It has no policy, so everything runs again: its module has no groups, because
  // it can run again as a whole only.
  bool is_whole = false;
  // The gathers that are earlier than in the trace when it runs again.
  std::vector<graph::Gather> gathers = {};
  // The storages that saving an operator keeps, ascending, with the group.
  std::vector<std::pair<graph::StorageId, graph::GroupId>> results = {};
  // Where operators may be skipped: what it needs when it runs again, if it has a
  // policy; and the storages of its results there, ascending.
  NeedGraphId needs = graph::kNone;
  std::vector<std::pair<graph::StorageId, ResultId>> needed_results = {};
};

struct TraceProblem {
  const graph::Trace* trace = nullptr;
  graph::Simulator simulator;
  // In pre-order.
  graph::IndexedVector<CandidateId, CandidateCall> candidates = {};
  // The innermost candidate around a call, if any.
  graph::IndexedVector<graph::CallId, CandidateId> candidate_of = {};
  // The first candidate of a module, if any.
  graph::IndexedVector<TreeNodeId, CandidateId> first_of_node = {};
  graph::IndexedVector<TreeNodeId, graph::OperatorGroups> groups = {};
  // Until when others than autograd hold a storage without units, or, if plans
  // change that, under all of them (graph/trace/gathers.h).
  graph::IndexedVector<graph::StorageId, graph::Time> held_until = {};
  // The records of a storage: what autograd saves of it, and the candidates whose
  // argument and whose operators' result it is.
  graph::IndexedVector<graph::StorageId, std::vector<graph::SavedId>> saved_of =
      {};
  graph::IndexedVector<graph::StorageId, std::vector<CandidateId>> frames_of =
      {};
  graph::IndexedVector<graph::StorageId, std::vector<CandidateId>> makers_of =
      {};
  // The walk over the calls (call_walk.h).
  ModuleProblem forest = {};
  graph::IndexedVector<WalkNodeId, CandidateId> candidate_at = {};
  std::vector<WalkNodeId> record_of = {};  // indexed by time
  // As BytesOfRank (trace_memory.h).
  graph::IndexedVector<graph::OperatorId, int64_t> bytes_of_rank = {};
  bool has_repeated_calls = false;  // of a candidate module
  // Operators may be skipped.
  bool may_skip = false;
  // The policies of the trace, if they may.
  std::optional<graph::NeedDrivenPolicies> need_driven = {};
  // All different.
  graph::IndexedVector<NeedGraphId, NeedGraph> need_graphs = {};
  // Says whether a policy has a choice about a group.
  graph::IndexedVector<TreeNodeId, GroupFlags> is_choice = {};
  // Modules that could not be units, why, and the bytes that therefore stay.
  WarningsByType no_units = {};
  std::vector<std::string> warnings = {};
};

// Returns a node of the walk over the calls.
inline const ModuleProblem::Node& NodeAt(const ModuleProblem& forest,
                                         WalkNodeId node) {
  return forest.nodes[IndexOf(node)];
}

// Returns the node after the last one in the subtree of a node.
inline WalkNodeId EndOfSubtree(const ModuleProblem& forest, WalkNodeId node) {
  return WalkNodeId{IndexOf(node) + NodeAt(forest, node).subtree_size};
}

// Returns the node of a unit that an engine has chosen.
inline WalkNodeId NodeOf(const ChosenUnit& unit) {
  return WalkNodeId{unit.node};
}

// States the problem of a trace, which must outlive it. `profile` and `tree` are those
// of the trace (graph/trace/aggregate.h). Options as for BuildJointProblem; the budget
// is not used. Throws InputError as that does.
TraceProblem BuildTraceProblem(const graph::Trace& trace,
                               const graph::Profile& profile,
                               const graph::ModuleTree& tree,
                               const JointProblemOptions& options);

// Returns the run-time of what a call runs again if its policy saves nothing: its
// operators up to where it stops, and casts by autocast from before it.
double WholeMs(const TraceProblem& problem, const CandidateCall& candidate);

// Returns the run-time of what a call runs again, for each group of its operators; all
// zero for a call without a policy.
graph::IndexedVector<graph::GroupId, double> GroupMs(
    const TraceProblem& problem, const CandidateCall& candidate);

// A plan that a search simulated, whether its budget allows the plan or not.
struct NearPlan {
  std::vector<graph::CheckpointedModule> modules;
  double ms = 0;  // of its recomputation
  int64_t peak_bytes = 0;
};

// Returns the simulated step of a rank with these units, or nothing if PyTorch
// refuses to run them.
std::optional<graph::Simulation> SimulatedUse(
    const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& modules);

}  // namespace acplan::problems
