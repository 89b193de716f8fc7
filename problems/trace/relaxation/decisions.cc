#include "problems/trace/relaxation/decisions.h"

#include <algorithm>
#include <ranges>
#include <set>

#include "problems/trace/problem/holders.h"

namespace acplan::problems {

using graph::GroupRule;
using graph::SavedTensor;

namespace {

class Deciding {
 public:
  explicit Deciding(const TraceProblem& problem) : problem_(problem) {
    const size_t candidates = problem.candidates.size();
    choices_.is_no_unit.assign(candidates, false);
    choices_.must_be_unit.assign(candidates, false);
    choices_.is_unit.assign(candidates, false);
  }

  void Decide(const Decision& decision) {
    switch (decision.kind) {
      case Decision::Kind::kLife:
        if (!decision.is_so) DecideDead(decision.storage(), decision.time());
        break;
      case Decision::Kind::kUnit:
        decision.is_so ? DecideUnit(decision.module_node())
                       : DecideNoUnit(decision.module_node());
        break;
      case Decision::Kind::kGroup:
        choices_.is_recomputed[{decision.module_node(), decision.group()}] =
            decision.is_so;
        break;
    }
  }

  DecidedChoices Conclude() {
    choices_.RuleOut(problem_, {});
    choices_.is_impossible |= HasTooManyUnits();
    return std::move(choices_);
  }

 private:
  void DecideDead(graph::StorageId storage, graph::Time time) {
    choices_.is_impossible |= problem_.held_until[storage] > time;
    const auto frame_holds = [&](CandidateId c) {
      return IsArgument(problem_, c, storage) &&
             HoldsArguments(problem_, c, time);
    };
    for (const graph::SavedId k : problem_.saved_of[storage]) {
      const SavedTensor& saved = problem_.trace->saved[k];
      if (saved.packed > time || HeldByAutogradUntil(saved) <= time) continue;
      // Some unit keeps it from holding: this one, where none around it is one.
      CandidateId c = CandidateAround(problem_, saved);
      while (c != graph::kNone && frame_holds(c)) {
        c = problem_.candidates[c].parent;
      }
      choices_.is_impossible |= c == graph::kNone;
      if (c != graph::kNone) choices_.must_be_unit[c] = true;
    }
    for (const CandidateId c : problem_.frames_of[storage]) {
      if (frame_holds(c)) choices_.is_no_unit[c] = true;
    }
    for (const CandidateId c : problem_.makers_of[storage]) {
      if (!IsBetweenRuns(problem_, c, time)) continue;
      if (problem_.may_skip) {
        choices_.is_not_kept.emplace(c, storage);
        continue;
      }
      const CandidateCall& candidate = problem_.candidates[c];
      const graph::GroupId group = *GroupThatKeeps(candidate, storage);
      if (choices_.Recomputes(problem_, candidate, group) == false) {
        choices_.is_no_unit[c] = true;
      } else {
        choices_.is_recomputed[{candidate.module_node, group}] = true;
      }
    }
  }

  void DecideNoUnit(TreeNodeId module_node) {
    for (const CandidateId c : problem_.candidates.ids()) {
      if (problem_.candidates[c].module_node == module_node) {
        choices_.is_no_unit[c] = true;
      }
    }
  }

  void DecideUnit(TreeNodeId module_node) {
    for (const CandidateId c : problem_.candidates.ids()) {
      const CandidateCall& candidate = problem_.candidates[c];
      if (candidate.module_node != module_node) continue;
      choices_.must_be_unit[c] = true;
      choices_.is_unit[c] = true;
      for (CandidateId a = candidate.parent; a != graph::kNone;
           a = problem_.candidates[a].parent) {
        choices_.is_no_unit[a] = true;
      }
    }
  }

  bool HasTooManyUnits() const {
    std::set<TreeNodeId> modules;
    for (const CandidateId c : problem_.candidates.ids()) {
      if (choices_.is_unit[c]) {
        modules.insert(problem_.candidates[c].module_node);
      }
    }
    const std::optional<int>& limit = problem_.forest.max_units;
    return limit && std::ssize(modules) > *limit;
  }

  const TraceProblem& problem_;
  DecidedChoices choices_;
};

}  // namespace

void DecidedChoices::RuleOut(const TraceProblem& problem,
                             const std::vector<CandidateId>& candidates) {
  for (const CandidateId c : candidates) is_no_unit[c] = true;
  for (const CandidateId c : std::views::reverse(problem.candidates.ids())) {
    if (!must_be_unit[c] || !is_no_unit[c]) continue;
    const CandidateId parent = problem.candidates[c].parent;
    must_be_unit[c] = false;
    is_impossible |= parent == graph::kNone;
    if (parent != graph::kNone) must_be_unit[parent] = true;
  }
}

std::optional<bool> DecidedChoices::Recomputes(const TraceProblem& problem,
                                               const CandidateCall& candidate,
                                               graph::GroupId group) const {
  if (!is_recomputed.empty()) {
    const auto decision = is_recomputed.find({candidate.module_node, group});
    if (decision != is_recomputed.end()) return decision->second;
  }
  switch (problem.groups[candidate.module_node].groups[group].rule) {
    case GroupRule::kRecompute:
      return true;
    case GroupRule::kSave:
      return false;
    case GroupRule::kFree:
      break;
  }
  return std::nullopt;
}

DecidedChoices ChoicesLeftBy(const TraceProblem& problem,
                             const std::vector<Decision>& decisions) {
  Deciding deciding(problem);
  for (const Decision& decision : decisions) deciding.Decide(decision);
  return deciding.Conclude();
}

}  // namespace acplan::problems
