#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/model/joint_problem.h"

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
// The simulated peak is no sum over units: a storage is live as long as any of
// its holders holds it. The joint problem below is a relaxation that is one. No
// plan that the simulation accepts is left out or costs less there, so its
// optimum is a lower bound, and where the simulation accepts its plan, that plan
// is optimal.
//
// The relaxation. A call runs again at the time r_c when backward first asks for
// something saved in it. A unit call is "before" a time t if it has ended by t
// and runs again after t. Every storage has a witness: one of its holders, that
// stands for all of them, or several with shares that sum up to at most 1.
// - A tensor that autograd saved: the storage is live until backward lets go of
//   it, but where a unit c is before t that it was saved in and of which the
//   storage is no argument (frames hold those). If c made the storage, its
//   policy may save it.
// - An argument of a call c: live where c is before t, or runs again.
// - A result of an operator that the policy of c saves: live where c is before t.
// - Whatever else holds it without units.
// So at a time t outside of units at least
//   b(t) - sum over units c before t of D_c,  D_c = a_c + sum_g m_cg z_cg
// bytes are live (z as in joint_problem.h), b(t) being what witnesses hold
// without units, and while a unit c runs or runs again at least
//   b(t) - sum over units before c - what c has let go of by t in forward
//     + the arguments for which c is a witness
// (ModuleProblem::Node::unit_base_bytes). Where a witness does not hold its
// storage the relaxation counts too little, never too much. Times are ordered by
// the last unit before them in the walk over the forest; calls of one module
// are units of their own.

struct TraceProblem {
  struct Candidate {
    int32_t call = 0;     // in Trace::calls
    int module_node = 0;  // in the module tree
    int parent = -1;      // the candidate directly around it
    int last = 0;         // the last candidate inside, or itself
    int node = 0;         // in the relaxation
    int32_t first_request = graph::kNever;  // r_c
    int32_t stop = 0;       // the operator before which it stops
    int32_t frame_end = 0;  // when its frame lets go of the arguments
    bool is_innermost = true;
    // Without a policy: everything runs again. Its module has no groups, because
    // its calls run different operators.
    bool is_whole = false;
    // What saving an operator keeps: storages, ascending, with the group.
    std::vector<std::pair<int32_t, int>> results = {};
  };
  const graph::Trace* trace = nullptr;
  graph::Simulator simulator;
  std::vector<Candidate> candidates = {};  // in pre-order
  std::vector<int> candidate_of = {};  // a call: the innermost around, or -1
  std::vector<graph::OperatorGroups> groups = {};  // a node of the module tree
  // A storage: until when others than autograd hold it without units.
  std::vector<int32_t> held = {};
  // A storage: what autograd saves of it, in Trace::saved, and the candidates
  // whose argument and whose operators' result it is.
  std::vector<std::vector<int32_t>> saved_of = {};
  std::vector<std::vector<int>> frames_of = {};
  std::vector<std::vector<int>> makers_of = {};
  // Nodes are candidates, and leaves without curve that carry the records of
  // the times between them.
  ModuleProblem forest = {};
  std::vector<int> candidate_at = {};  // a node, -1: none
  std::vector<int> record_of = {};     // a time: the node whose record it is in
  // A time, as BytesOfRank (trace_memory.h).
  std::vector<int64_t> bytes_of_rank = {};
  bool has_repeated_calls = false;  // of a candidate module
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
double WholeMs(const TraceProblem& problem,
               const TraceProblem::Candidate& candidate);

// A holder that stands for a storage.
struct Witness {
  // kDecided: no holder, but that a decision says so, up to a time.
  enum class Kind { kProgram, kSavedTensor, kArgument, kResult, kDecided };
  Kind kind = Kind::kProgram;
  int index = -1;    // in Trace::saved, a candidate, or a time
  double share = 1;  // of the bytes

  bool operator==(const Witness&) const = default;
};
using Witnesses = std::vector<std::vector<Witness>>;  // a storage

// The witnesses that hold most at the peak without units.
Witnesses FirstWitnesses(const TraceProblem& problem);

struct TraceRelaxation {
  JointProblem joint;
  // A node with a candidate: for each group of its module the kind of the node's
  // policies that it is one of, or one of the values below.
  static constexpr int kSaved = -1;
  static constexpr int kRecomputed = -2;
  std::vector<std::vector<int>> kind_of_group;
};

// Something that is so in a part of the plans.
struct Decision {
  enum class Kind {
    kLife,   // a storage is live at a time, as it was made first
    kUnit,   // a module is a unit
    kGroup,  // a module, if it is a unit, recomputes a group of operators
  };
  Kind kind = Kind::kLife;
  int32_t of = 0;  // the storage, or a node of the module tree
  int32_t at = 0;  // the time, or the group
  bool is_so = false;

  // Whether what this one says settles the other one.
  bool Settles(const Decision& other) const {
    if (kind != other.kind || of != other.of) return false;
    if (kind != Kind::kLife) return at == other.at;
    return is_so ? other.at <= at : other.at >= at;
  }
};

// Of the plans that keep all decisions.
TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions = {});

// A group of the unit's module: whether it is recomputed.
std::vector<char> RecomputedGroups(const TraceRelaxation& relaxation,
                                   const ChosenUnit& unit);

// Units of the relaxation as the simulation takes them: of a module with several
// calls among them a group is recomputed that any of them recomputes.
std::vector<graph::CheckpointedModule> CheckpointedModules(
    const TraceProblem& problem, const TraceRelaxation& relaxation,
    const std::vector<ChosenUnit>& units);

// A storage that is live at a time in a plan, but for the witnesses.
struct Miscounted {
  int32_t storage = 0;
  int64_t bytes = 0;                    // that are missing
  std::vector<Witness> witnesses = {};  // that would count it
  bool is_copy = false;                 // what is live was made again
};
std::vector<Miscounted> FindMiscounted(
    const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& modules, int32_t time,
    const Witnesses& witnesses);

// Witnesses of one storage: those with shares 1 - weight, and these with weight.
std::vector<Witness> Blended(std::vector<Witness> of,
                             const std::vector<Witness>& with, double weight);

// The simulated step of a rank with these units.
graph::Simulation UseOf(const TraceProblem& problem,
                        const std::vector<graph::CheckpointedModule>& modules);

}  // namespace acplan::problems
