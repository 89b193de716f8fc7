#include "problems/trace/trace_parts.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>

#include "problems/plan/trace_memory.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::Simulation;

namespace {

class Splitter {
 public:
  Splitter(const TraceProblem& problem, const TracePart& part,
           const RelaxedPlan& plan, const Witnesses& witnesses,
           int64_t budget_bytes)
      : problem_(problem),
        part_(part),
        plan_(plan),
        witnesses_(witnesses),
        budget_bytes_(budget_bytes) {}

  Split Run() {
    Split split{.decision = {}, .next = witnesses_};
    const auto keep = [&](std::optional<Decision> decision) {
      if (!split.decision) split.decision = decision;
    };
    keep(OneOfTooMany());
    keep(FirstInconsistency());
    if (plan_.use) {
      // Witnesses are found in any case.
      keep(Miscount(split.next));
      if (!split.decision) keep(MissedInRecomputation());
    }
    if (!split.decision) keep(AnyOpen());
    return split;
  }

 private:
  using Candidate = TraceProblem::Candidate;

  const Candidate& CandidateOf(const ChosenUnit& unit) const {
    return problem_.candidates[problem_.candidate_at[unit.node]];
  }

  // With several calls of a module the relaxation counts units by call.
  std::optional<Decision> OneOfTooMany() const {
    if (KeepsMaxUnits(problem_, plan_.modules)) return std::nullopt;
    return UndecidedUnit();
  }

  std::optional<Decision> UndecidedUnit() const {
    for (const ChosenUnit& unit : plan_.units) {
      const Decision is_unit = {.kind = Decision::Kind::kUnit,
                                .of = CandidateOf(unit).module_node};
      if (!part_.IsDecided(is_unit)) return is_unit;
    }
    return std::nullopt;
  }

  // Calls of one module of which only some are units, or which differ.
  std::optional<Decision> FirstInconsistency() const {
    if (!problem_.has_repeated_calls) return std::nullopt;
    std::map<int, std::vector<const ChosenUnit*>> units_of;  // a module
    for (const ChosenUnit& unit : plan_.units) {
      units_of[CandidateOf(unit).module_node].push_back(&unit);
    }
    for (const auto& [module, units] : units_of) {
      const auto calls = std::ranges::count(problem_.candidates, module,
                                            &Candidate::module_node);
      const Decision is_unit = {.kind = Decision::Kind::kUnit, .of = module};
      if (calls > std::ssize(units) && !part_.IsDecided(is_unit)) {
        return is_unit;
      }
      const std::vector<char> first =
          RecomputedGroups(plan_.relaxation, *units.front());
      for (const ChosenUnit* unit : units) {
        const std::vector<char> groups =
            RecomputedGroups(plan_.relaxation, *unit);
        for (size_t g = 0; g < first.size(); ++g) {
          const Decision group = {.kind = Decision::Kind::kGroup,
                                  .of = module,
                                  .at = static_cast<int32_t>(g)};
          if (first[g] != groups[g] && !part_.IsDecided(group)) return group;
        }
      }
    }
    return std::nullopt;
  }

  // The storage of which most is missing where the plan breaks the budget. The
  // next witnesses count all that is missing.
  std::optional<Decision> Miscount(Witnesses& next) const {
    std::optional<Decision> decision;
    int64_t most = 0;
    for (const int32_t time : ViolatedTimes()) {
      for (Miscounted& m :
           FindMiscounted(problem_, plan_.modules, time, witnesses_)) {
        const std::optional<int32_t> until = part_.LiveUntil(m.storage);
        if (until && *until >= time) {
          next[m.storage] = {
              {.kind = Witness::Kind::kDecided, .index = *until}};
        } else {
          next[m.storage] = std::move(m.witnesses);
        }
        const Decision is_live = {
            .kind = Decision::Kind::kLife, .of = m.storage, .at = time};
        if (m.is_copy || part_.IsDecided(is_live)) continue;
        if (decision && decision->of == m.storage) {
          decision->at = std::max(decision->at, time);
        }
        if (m.bytes <= most) continue;
        most = m.bytes;
        decision = is_live;
      }
    }
    return decision;
  }

  // A group of a unit that breaks the budget while it runs again: one that runs
  // there, or else the one of which most is saved for later.
  std::optional<Decision> MissedInRecomputation() const {
    int64_t worst = budget_bytes_;
    std::optional<Decision> decision;
    const Simulation& use = *plan_.use;
    for (size_t k = 0; k < use.steps.size(); ++k) {
      const Simulation::Step& step = use.steps[k];
      if (step.redone < 0 || use.live_bytes[k] <= worst) continue;
      const graph::TraceCall& call = problem_.trace->calls[step.redone];
      if (step.op < call.start) continue;  // a cast from before the call
      const Candidate& candidate =
          problem_.candidates[problem_.candidate_of[step.redone]];
      if (candidate.is_whole) continue;
      const graph::OperatorGroups& groups =
          problem_.groups[candidate.module_node];
      const auto is_open = [&](const Decision& d) {
        return groups.groups[d.at].rule == graph::GroupRule::kFree &&
               !part_.IsDecided(d);
      };
      const auto group_of = [&](int32_t op) {
        return Decision{.kind = Decision::Kind::kGroup,
                        .of = candidate.module_node,
                        .at = groups.group_of[op - call.start]};
      };
      std::optional<Decision> next = group_of(step.op);
      if (!is_open(*next)) next = MostSaved(call, step.op, is_open, group_of);
      if (!next) continue;
      worst = use.live_bytes[k];
      decision = next;
    }
    return decision;
  }

  template <typename IsOpen, typename GroupOf>
  std::optional<Decision> MostSaved(const graph::TraceCall& call, int32_t op,
                                    const IsOpen& is_open,
                                    const GroupOf& group_of) const {
    const auto unit = std::ranges::find(plan_.modules, call.module,
                                        &CheckpointedModule::module);
    std::map<int32_t, int64_t> saved;  // a group
    std::optional<Decision> most;
    for (int32_t later = op + 1; later < call.end; ++later) {
      if (!unit->save[later - call.start]) continue;
      const Decision group = group_of(later);
      if (!is_open(group)) continue;
      for (const int32_t s : problem_.trace->operators[later].creates) {
        saved[group.at] += problem_.trace->storages[s].bytes;
      }
      if (!most || saved[group.at] > saved[most->at]) most = group;
    }
    return most;
  }

  // Of each record that the plan breaks the time that breaks it most.
  std::vector<int32_t> ViolatedTimes() const {
    const Simulation& use = *plan_.use;
    std::map<int, std::pair<int64_t, int32_t>> worst;  // a record
    const std::vector<int32_t> times = TimesOf(use);
    for (size_t k = 0; k < use.steps.size(); ++k) {
      if (use.steps[k].redone >= 0 || use.live_bytes[k] <= budget_bytes_) {
        continue;
      }
      auto& [bytes, at] = worst[problem_.record_of[times[k]]];
      if (use.live_bytes[k] <= bytes) continue;
      bytes = use.live_bytes[k];
      at = times[k];
    }
    std::vector<std::pair<int64_t, int32_t>> sorted;
    for (const auto& [record, of] : worst) sorted.push_back(of);
    // The worst last, so that it has the last word on witnesses.
    std::ranges::sort(sorted);
    std::vector<int32_t> result;
    for (const auto& [bytes, at] : sorted) result.push_back(at);
    return result;
  }

  // Anything that the part leaves open: first of the plan's units, then of
  // modules that are none.
  std::optional<Decision> AnyOpen() const {
    if (auto unit = UndecidedUnit()) return unit;
    for (const ChosenUnit& unit : plan_.units) {
      if (auto group = UndecidedGroup(CandidateOf(unit).module_node)) {
        return group;
      }
    }
    std::set<int> units;
    for (const Decision& d : part_.decisions) {
      if (d.kind == Decision::Kind::kUnit && d.is_so) units.insert(d.of);
    }
    std::set<int> excluded;
    for (const Candidate& candidate : problem_.candidates) {
      for (int a = candidate.parent; a >= 0;
           a = problem_.candidates[a].parent) {
        const int around = problem_.candidates[a].module_node;
        if (units.contains(around)) excluded.insert(candidate.module_node);
        if (units.contains(candidate.module_node)) excluded.insert(around);
      }
    }
    for (const Candidate& candidate : problem_.candidates) {
      const int module = candidate.module_node;
      if (units.contains(module)) {
        if (auto group = UndecidedGroup(module)) return group;
        continue;
      }
      const Decision is_unit = {.kind = Decision::Kind::kUnit, .of = module};
      if (!excluded.contains(module) && !part_.IsDecided(is_unit)) {
        return is_unit;
      }
    }
    return std::nullopt;
  }

  std::optional<Decision> UndecidedGroup(int module) const {
    const graph::OperatorGroups& groups = problem_.groups[module];
    for (size_t g = 0; g < groups.groups.size(); ++g) {
      const Decision group = {.kind = Decision::Kind::kGroup,
                              .of = module,
                              .at = static_cast<int32_t>(g)};
      if (groups.groups[g].rule == graph::GroupRule::kFree &&
          !part_.IsDecided(group)) {
        return group;
      }
    }
    return std::nullopt;
  }

  const TraceProblem& problem_;
  const TracePart& part_;
  const RelaxedPlan& plan_;
  const Witnesses& witnesses_;
  const int64_t budget_bytes_;
};

}  // namespace

bool TracePart::IsDecided(const Decision& decision) const {
  return std::ranges::any_of(
      decisions, [&](const Decision& d) { return d.Settles(decision); });
}

std::optional<int32_t> TracePart::LiveUntil(int32_t storage) const {
  std::optional<int32_t> until;
  for (const Decision& d : decisions) {
    if (d.kind == Decision::Kind::kLife && d.of == storage && d.is_so) {
      until = std::max(until.value_or(d.at), d.at);
    }
  }
  return until;
}

Split SplitOn(const TraceProblem& problem, const TracePart& part,
              const RelaxedPlan& plan, const Witnesses& witnesses,
              int64_t budget_bytes) {
  return Splitter(problem, part, plan, witnesses, budget_bytes).Run();
}

TracePart HalfOf(const TracePart& part, Decision decision, bool is_so) {
  TracePart half = part;
  decision.is_so = is_so;
  half.decisions.push_back(decision);
  if (decision.kind != Decision::Kind::kLife || !is_so) return half;
  const std::vector<Witness> decided = {
      {.kind = Witness::Kind::kDecided, .index = decision.at}};
  const auto place = std::ranges::lower_bound(
      half.next, decision.of, {},
      [](const auto& changed) { return changed.first; });
  if (place != half.next.end() && place->first == decision.of) {
    place->second = decided;
  } else {
    half.next.insert(place, {decision.of, decided});
  }
  return half;
}

std::vector<CheckpointedModule> OnlyPlanOf(const TraceProblem& problem,
                                           const TracePart& part) {
  std::map<int, CheckpointedModule> units;  // a node of the module tree
  for (const Decision& d : part.decisions) {
    if (d.kind != Decision::Kind::kUnit || !d.is_so) continue;
    const auto candidate = std::ranges::find(
        problem.candidates, d.of, &TraceProblem::Candidate::module_node);
    const graph::OperatorGroups& groups = problem.groups[d.of];
    CheckpointedModule& unit = units[d.of];
    unit.module = problem.trace->calls[candidate->call].module;
    unit.save.assign(groups.group_of.size(), 0);
    for (const graph::OperatorGroup& group : groups.groups) {
      const bool is_saved = group.rule == graph::GroupRule::kSave;
      for (const int op : group.ops) unit.save[op] = is_saved ? 1 : 0;
    }
  }
  for (const Decision& d : part.decisions) {
    if (d.kind != Decision::Kind::kGroup || !units.contains(d.of)) continue;
    for (const int op : problem.groups[d.of].groups[d.at].ops) {
      units[d.of].save[op] = d.is_so ? 0 : 1;
    }
  }
  std::vector<CheckpointedModule> modules;
  for (auto& [node, unit] : units) modules.push_back(std::move(unit));
  return modules;
}

ChangedWitnesses ChangesOf(const Witnesses& first, const Witnesses& witnesses) {
  ChangedWitnesses changes;
  for (size_t s = 0; s < first.size(); ++s) {
    if (witnesses[s] != first[s]) {
      changes.emplace_back(static_cast<int32_t>(s), witnesses[s]);
    }
  }
  return changes;
}

Witnesses Blend(const Witnesses& first, const ChangedWitnesses& of,
                const ChangedWitnesses& with, double weight) {
  Witnesses blended = first;
  for (const auto& [s, witnesses] : of) blended[s] = witnesses;
  Witnesses target = first;
  for (const auto& [s, witnesses] : with) target[s] = witnesses;
  for (size_t s = 0; s < first.size(); ++s) {
    if (blended[s] == target[s]) continue;
    blended[s] = weight == 1
                     ? std::move(target[s])
                     : Blended(std::move(blended[s]), target[s], weight);
  }
  return blended;
}

bool KeepsMaxUnits(const TraceProblem& problem,
                   const std::vector<CheckpointedModule>& modules) {
  const std::optional<int>& most = problem.forest.max_units;
  return !most || std::ssize(modules) <= *most;
}

}  // namespace acplan::problems
