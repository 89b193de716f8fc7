#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "problems/model/joint_problem.h"
#include "problems/trace/policies/need_policies.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/decisions.h"
#include "problems/trace/relaxation/policy_memo.h"
#include "problems/trace/relaxation/witnesses.h"

namespace acplan::problems {

// A joint problem (joint_problem.h) that relaxes a trace problem: no plan that the
// simulation accepts and that keeps all decisions is left out or costs more there
// than in the step. So its optimum is a lower bound, and where the simulation
// accepts its plan, that plan is optimal.
//
// With witnesses (witnesses.h) as the holders of storages, at a time t outside of
// units at least
//   b(t) - sum over units c before t of D_c,  D_c = a_c + sum_g m_cg z_cg
// bytes are live (z as in joint_problem.h), b(t) being what witnesses hold
// without units, and while a unit c runs or runs again at least
//   b(t) - sum over units before c - what c has let go of by t in forward
//     + the arguments for which c is a witness
// (ModuleProblem::Node::unit_base_bytes). Times are ordered by the walk over the
// calls (call_walk.h). Calls of one module are units of their own.
struct TraceRelaxation {
  JointProblem joint;
  // For each group of the module of a node with a candidate the kind of the node's
  // policies that it is one of, or one of the values below.
  static constexpr int kSaved = -1;
  static constexpr int kRecomputed = -2;
  using KindOfGroup = graph::IndexedVector<graph::GroupId, int>;
  graph::IndexedVector<WalkNodeId, KindOfGroup> kind_of_group;
  // Where operators may be skipped, instead: the policies that the points of a node's
  // policies are.
  graph::IndexedVector<WalkNodeId, std::shared_ptr<const NeedPolicies>> needs =
      {};
  // The choices of the call of a node whose policies are not all exact.
  std::map<WalkNodeId, NeedChoices> inexact = {};

  // Returns whether a unit's policy is one of its call, and no relaxed one.
  bool IsExact(const ChosenUnit& unit) const;
};

// Relaxes a problem. Plans that cost more than `most_ms` may be left out. `memo`: of
// the problem.
TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions, double most_ms,
                      PolicyMemo& memo);
TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions = {});

// Returns the relaxation with policies near to those of a plan of it exact, where the
// plan's are relaxed, as far as matters to plans that cost less than `most_ms`. The
// budget is that of the joint problem.
TraceRelaxation Sharpened(const TraceProblem& problem,
                          TraceRelaxation relaxation,
                          const std::vector<ChosenUnit>& units, double most_ms,
                          PolicyMemo& memo);

// The choices of candidates with a need graph that may be units; nothing of others.
using ChoicesByCandidate =
    graph::IndexedVector<CandidateId, std::optional<NeedChoices>>;

// Returns the choices that witnesses and decisions leave policies.
ChoicesByCandidate ChoicesOfCalls(const TraceProblem& problem,
                                  const Witnesses& witnesses,
                                  const std::vector<Decision>& decisions = {});

// Returns the use that a unit makes of each group of its module.
GroupUses UsesOfUnit(const TraceRelaxation& relaxation, const ChosenUnit& unit);

// Returns units of the relaxation as the simulation takes them: a module with several
// calls among them does not save a group that any of them runs again.
std::vector<graph::CheckpointedModule> CheckpointedModules(
    const TraceProblem& problem, const TraceRelaxation& relaxation,
    const std::vector<ChosenUnit>& units);

}  // namespace acplan::problems
