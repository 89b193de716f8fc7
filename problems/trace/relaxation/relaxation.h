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
  // A node with a candidate: for each group of its module the kind of the node's
  // policies that it is one of, or one of the values below.
  static constexpr int kSaved = -1;
  static constexpr int kRecomputed = -2;
  std::vector<std::vector<int>> kind_of_group;
  // Where operators may be skipped, instead: the policies that the points of the
  // node's policies are.
  std::vector<std::shared_ptr<const NeedPolicies>> needs = {};
  // A node whose policies are not all exact: what its call may do.
  std::map<int, NeedChoices> inexact = {};

  // Returns whether a unit's policy is one of its call, and no relaxed one.
  bool IsExact(const ChosenUnit& unit) const;
};

// Plans that cost more than `most_ms` may be left out. `memo`: of the problem.
TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions, double most_ms,
                      PolicyMemo& memo);
TraceRelaxation Relax(const TraceProblem& problem, const Witnesses& witnesses,
                      const std::vector<Decision>& decisions = {});

// The relaxation with policies near to those of a plan of it exact, where the plan's
// are relaxed, as far as matters to plans that cost less than `most_ms`. The budget
// is that of the joint problem.
TraceRelaxation Sharpened(const TraceProblem& problem,
                          TraceRelaxation relaxation,
                          const std::vector<ChosenUnit>& units, double most_ms,
                          PolicyMemo& memo);

// A candidate with a need graph that may be a unit: the choices that witnesses and
// decisions leave its policies; nothing of others.
std::vector<std::optional<NeedChoices>> ChoicesOfCalls(
    const TraceProblem& problem, const Witnesses& witnesses,
    const std::vector<Decision>& decisions = {});

// A group of the unit's module: what the unit does with it.
std::vector<GroupUse> GroupUses(const TraceRelaxation& relaxation,
                                const ChosenUnit& unit);

// Units of the relaxation as the simulation takes them: of a module with several
// calls among them a group is not saved that any of them runs again.
std::vector<graph::CheckpointedModule> CheckpointedModules(
    const TraceProblem& problem, const TraceRelaxation& relaxation,
    const std::vector<ChosenUnit>& units);

}  // namespace acplan::problems
