#include "tests/problems/trace/decision_enumeration.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/simulation.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::GroupRule;
using graph::OperatorDecision;
using graph::OperatorGroups;

namespace {

bool IsAccepted(const TraceProblem& problem, const CheckpointedModule& unit) {
  try {
    problem.simulator.Simulate({unit});
    return true;
  } catch (const InputError&) {
    return false;
  }
}

// The policies of a module.
class PolicyEnumerator {
 public:
  PolicyEnumerator(const TraceProblem& problem, TreeNodeId node,
                   const graph::TraceCall& call)
      : problem_(problem),
        groups_(problem.groups[node]),
        call_(call),
        decided_(groups_.groups.size(), OperatorDecision::kSkip) {
    unit_.module = call.module;
    unit_.decisions.assign(groups_.group_of.size(), OperatorDecision::kSkip);
  }

  std::vector<CheckpointedModule> Run() {
    Decide(0);
    return std::move(accepted_);
  }

 private:
  bool MayBe(graph::GroupId group, OperatorDecision decision) const {
    const GroupRule rule = groups_.groups[group].rule;
    const bool is_tied = decided_[group] != OperatorDecision::kSkip &&
                         decided_[group] != decision;
    return !is_tied &&
           rule != (decision == OperatorDecision::kSave ? GroupRule::kRecompute
                                                        : GroupRule::kSave);
  }

  void Decide(size_t op) {
    if (op == unit_.decisions.size()) {
      if (IsAccepted(problem_, unit_)) accepted_.push_back(unit_);
      return;
    }
    unit_.decisions[op] = OperatorDecision::kSkip;
    Decide(op + 1);
    const graph::GroupId group = groups_.group_of[op];
    for (const auto decision :
         {OperatorDecision::kSave, OperatorDecision::kRecompute}) {
      if (!MayBe(group, decision)) continue;
      const OperatorDecision before = std::exchange(decided_[group], decision);
      unit_.decisions[op] = decision;
      if (decision == OperatorDecision::kSave) {
        ChooseResults(op);
      } else {
        Decide(op + 1);
      }
      decided_[group] = before;
    }
    unit_.decisions[op] = OperatorDecision::kSkip;
  }

  void ChooseResults(size_t op) {
    const auto place = static_cast<int32_t>(op);
    const size_t results =
        problem_.trace->operators[call_.AtPlace(place)].results.size();
    Decide(op + 1);
    if (results < 2) return;
    for (uint32_t subset = 1; subset + 1 < uint32_t{1} << results; ++subset) {
      std::vector<int32_t>& kept_results = unit_.kept_results[place];
      kept_results.clear();
      for (size_t r = 0; r < results; ++r) {
        if ((subset >> r & 1) != 0)
          kept_results.push_back(static_cast<int32_t>(r));
      }
      Decide(op + 1);
    }
    unit_.kept_results.erase(place);
  }

  const TraceProblem& problem_;
  const OperatorGroups& groups_;
  const graph::TraceCall& call_;
  // kSkip: not yet.
  graph::IndexedVector<graph::GroupId, OperatorDecision> decided_;
  CheckpointedModule unit_;
  std::vector<CheckpointedModule> accepted_;
};

class PlanEnumerator {
 public:
  PlanEnumerator(const TraceProblem& problem, const DecisionLimits& limits)
      : problem_(problem), limits_(limits) {}

  std::optional<TracePlans> Run() {
    if (!FindUnits()) return std::nullopt;
    if (!Choose(0)) return std::nullopt;
    return std::move(result_);
  }

 private:
  struct Unit {
    TreeNodeId node = {};
    std::vector<CheckpointedModule> policies = {};
    std::vector<char> excludes = {};  // other units
  };

  // Returns whether no unit has too many operators.
  bool FindUnits() {
    graph::IndexedVector<TreeNodeId, int> index(problem_.groups.size(), -1);
    for (const CandidateCall& candidate : problem_.candidates) {
      int& unit_index = index[candidate.module_node];
      if (unit_index >= 0) continue;
      unit_index = static_cast<int>(units_.size());
      const size_t length =
          problem_.groups[candidate.module_node].group_of.size();
      if (length > static_cast<size_t>(limits_.most_operators)) return false;
      units_.push_back({.node = candidate.module_node});
      units_.back().policies =
          PolicyEnumerator(problem_, candidate.module_node,
                           problem_.trace->calls[candidate.call])
              .Run();
    }
    for (Unit& unit : units_) unit.excludes.assign(units_.size(), 0);
    for (const CandidateCall& candidate : problem_.candidates) {
      const int inner = index[candidate.module_node];
      for (CandidateId c = candidate.parent; c != graph::kNone;
           c = problem_.candidates[c].parent) {
        const int outer = index[problem_.candidates[c].module_node];
        units_[inner].excludes[outer] = units_[outer].excludes[inner] = 1;
      }
    }
    return true;
  }

  bool MayAdd(size_t u) const {
    const int most =
        limits_.max_units.value_or(std::numeric_limits<int>::max());
    return std::ssize(chosen_units_) < most &&
           std::ranges::none_of(chosen_units_, [&](size_t other) {
             return units_[u].excludes[other] != 0;
           });
  }

  // Returns whether there are at most so many plans.
  bool Choose(size_t u) {
    if (u == units_.size()) return Simulate();
    if (!Choose(u + 1)) return false;
    if (!MayAdd(u)) return true;
    chosen_units_.push_back(u);
    for (const CheckpointedModule& policy : units_[u].policies) {
      modules_.push_back(policy);
      const bool is_done = Choose(u + 1);
      modules_.pop_back();
      if (!is_done) return false;
    }
    chosen_units_.pop_back();
    return true;
  }

  bool Simulate() {
    if (std::ssize(result_.plans) == limits_.most) return false;
    try {
      const graph::Simulation use = problem_.simulator.Simulate(modules_);
      result_.plans.push_back({.peak_bytes = use.peak_bytes,
                               .recompute_ms = use.recompute_ms,
                               .modules = modules_});
    } catch (const InputError&) {
      ++result_.refused;
    }
    return true;
  }

  const TraceProblem& problem_;
  const DecisionLimits limits_;
  std::vector<Unit> units_;
  std::vector<size_t> chosen_units_;
  std::vector<CheckpointedModule> modules_;
  TracePlans result_;
};

}  // namespace

std::optional<TracePlans> EnumerateDecisions(const TraceProblem& problem,
                                             const DecisionLimits& limits) {
  return PlanEnumerator(problem, limits).Run();
}

}  // namespace acplan::problems
