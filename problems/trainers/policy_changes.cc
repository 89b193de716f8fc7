#include "problems/trainers/policy_changes.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "graph/base/flag.h"
#include "problems/check/plan_rules.h"
#include "problems/decode_plan.h"
#include "problems/language/language_search.h"
#include "problems/language/ties.h"

namespace acplan::problems {

using graph::Flag;

namespace {

// Recomputation that differs by less than this share of the step counts as the same.
constexpr double kSameShare = 1e-9;

using TieFlags = graph::IndexedVector<TieId, Flag>;

std::vector<std::string> NamesWithout(const std::vector<std::string>& names,
                                      const std::vector<std::string>& others) {
  std::vector<std::string> rest;
  std::ranges::set_difference(names, others, std::back_inserter(rest));
  return rest;
}

// Returns the classes or parts of a choice.
const std::vector<std::string>& NamesOf(const BlockChoice& blocks) {
  return blocks.kind == BlockKind::kParts ? blocks.parts : blocks.classes;
}

std::string WordsOf(const BlockChoice& blocks) {
  switch (blocks.kind) {
    case BlockKind::kNone:
      return "checkpoint nothing";
    case BlockKind::kAll:
      return "checkpoint all blocks";
    case BlockKind::kFirst:
      return fmt::format("checkpoint the first {} blocks", blocks.end);
    case BlockKind::kRange:
      return fmt::format("checkpoint blocks {} to {}, counted from 0",
                         blocks.begin, blocks.end - 1);
    case BlockKind::kEvery:
      return fmt::format("checkpoint one block in {}", blocks.period);
    case BlockKind::kRuns:
      return fmt::format("checkpoint {} blocks together", blocks.period);
    case BlockKind::kClasses:
    case BlockKind::kParts:
      break;
  }
  return fmt::format("checkpoint {}", fmt::join(NamesOf(blocks), ", "));
}

// Returns the words for one class or part more or less; nothing for other differences.
std::optional<std::string> WordsOfNames(const BlockChoice& from,
                                        const BlockChoice& to) {
  const auto more = NamesWithout(NamesOf(to), NamesOf(from));
  const auto less = NamesWithout(NamesOf(from), NamesOf(to));
  if (more.size() + less.size() != 1) return std::nullopt;
  return more.empty() ? fmt::format("checkpoint {} no longer", less.front())
                      : fmt::format("checkpoint {} too", more.front());
}

class Changes {
 public:
  Changes(const RestrictedTrace& restriction, const Language& language,
          const TrainerPolicy& policy)
      : restriction_(restriction), language_(language), policy_(policy) {}

  std::vector<PolicyChange> Find() && {
    AddBlocks();
    if (policy_.blocks.kind != BlockKind::kNone) {
      AddSets();
      AddNames();
      if (!policy_.stops_early && language_.stops_early) {
        TrainerPolicy policy = policy_;
        policy.stops_early = true;
        Add("set use_reentrant to false", std::move(policy));
      }
    }
    return std::move(changes_);
  }

 private:
  void Add(std::string words, TrainerPolicy policy) {
    if (policy == policy_) return;
    changes_.push_back({std::move(words), std::move(policy)});
  }

  void AddBlocks() {
    std::vector<const UnitChoice*> choices;
    for (const UnitChoice& choice : restriction_.choices) {
      const bool is_known =
          std::ranges::any_of(choices, [&](const auto* other) {
            return other->policy.blocks == choice.policy.blocks;
          });
      if (!is_known) choices.push_back(&choice);
    }
    for (const UnitChoice* choice : choices) {
      const BlockChoice& blocks = choice->policy.blocks;
      if (blocks == policy_.blocks) continue;
      std::optional<std::string> words = WordsOf(blocks);
      // From blocks to parts any set of parts is a change of one key, and back.
      const bool has_names = blocks.kind == BlockKind::kClasses ||
                             policy_.blocks.kind == BlockKind::kClasses ||
                             (blocks.kind == BlockKind::kParts &&
                              blocks.kind == policy_.blocks.kind);
      if (has_names && blocks.kind != BlockKind::kNone) {
        words = WordsOfNames(policy_.blocks, blocks);
      }
      if (words) Add(std::move(*words), OnOtherBlocks(*choice));
    }
  }

  // Returns the policy on the units of another choice. Names that the language saves in any
  // case are added to saved ones.
  TrainerPolicy OnOtherBlocks(const UnitChoice& choice) const {
    if (choice.policy.blocks.kind == BlockKind::kNone) return {};
    TrainerPolicy policy = language_.Saving(choice.policy.blocks);
    policy.stops_early = policy_.blocks.kind == BlockKind::kNone
                             ? language_.stops_early
                             : policy_.stops_early;
    if (policy_.saved.empty()) return policy;
    std::set<std::string> saved(policy_.saved.begin(), policy_.saved.end());
    const graph::Trace& trace = *restriction_.problem->trace;
    const Ties ties(trace, SacOfModules(*restriction_.problem->profile),
                    language_,
                    UnitModules(trace, restriction_.blocks, policy.blocks));
    for (const std::string& name : ties.names()) {
      if (MatchesAny(name, language_.always_saved)) saved.insert(name);
    }
    policy.saved.assign(saved.begin(), saved.end());
    return policy;
  }

  // Saving operators takes a checkpoint as the language has it. These names wait on the
  // host no longer.
  TrainerPolicy Saving(std::vector<std::string> names) const {
    TrainerPolicy policy = policy_;
    policy.offloaded = NamesWithout(policy.offloaded, names);
    policy.saved = std::move(names);
    if (!policy.saved.empty()) policy.stops_early = language_.stops_early;
    return policy;
  }

  void AddSets() {
    if (language_.sets.empty()) return;
    Add("save no operators", Saving({}));
    for (const UnitChoice& choice : restriction_.choices) {
      if (choice.policy.blocks != policy_.blocks) continue;
      if (choice.policy.saved.empty()) continue;
      Add("save the operators of attention", Saving(choice.policy.saved));
    }
  }

  void AddNames() {
    if (!language_.takes_names) return;
    const UnitChoice* choice = ChoiceOfUnits();
    std::vector<std::string> others = policy_.saved;  // in no tie
    if (choice != nullptr) {
      TieFlags saves;
      for (const OperatorTie& tie : choice->ties) {
        saves.push_back(std::ranges::includes(policy_.saved, tie.names));
      }
      for (const TieId t : choice->ties.ids()) {
        if (saves[t]) others = NamesWithout(others, choice->ties[t].names);
      }
      for (const TieId t : choice->ties.ids()) {
        Toggle(*choice, t, saves, others);
        MoveToHost(choice->ties[t]);
      }
    }
    for (const std::string& name : others) {
      Add("save " + QualifiedName(name) + " no longer",
          Saving(NamesWithout(policy_.saved, {name})));
    }
  }

  // Returns the choice of the language with the policy's units; null if there is none.
  const UnitChoice* ChoiceOfUnits() const {
    const graph::Trace& trace = *restriction_.problem->trace;
    const auto modules =
        UnitModules(trace, restriction_.blocks, policy_.blocks);
    for (const UnitChoice& choice : restriction_.choices) {
      if (choice.ties.empty()) continue;
      if (UnitModules(trace, restriction_.blocks, choice.policy.blocks) ==
          modules) {
        return &choice;
      }
    }
    return nullptr;
  }

  void Toggle(const UnitChoice& choice, TieId tie, TieFlags saves,
              const std::vector<std::string>& others) {
    const bool is_added = !saves[tie];
    saves[tie] = is_added;
    for (const auto& [one, other] : choice.implications) {
      if (!saves[one] || saves[other]) continue;
      // A name that another one of the list says cannot be taken off.
      if (!is_added) return;
      if (one == tie) saves[other] = true;
    }
    for (const auto& [one, other] : choice.implications) {
      if (saves[one] && !saves[other]) return;
    }
    std::set<std::string> names(others.begin(), others.end());
    for (const TieId t : choice.ties.ids()) {
      if (!saves[t]) continue;
      names.insert(choice.ties[t].names.begin(), choice.ties[t].names.end());
    }
    std::vector<std::string> saved(names.begin(), names.end());
    const auto changed = is_added ? NamesWithout(saved, policy_.saved)
                                  : NamesWithout(policy_.saved, saved);
    std::vector<std::string> words;
    for (const std::string& name : changed) {
      words.push_back(QualifiedName(name));
    }
    Add(fmt::format("save {} {}", fmt::join(words, ", "),
                    is_added ? "too" : "no longer"),
        Saving(std::move(saved)));
  }

  // Adds the change that offloads a tie, or offloads it no longer.
  void MoveToHost(const OperatorTie& tie) {
    const bool is_offloaded =
        std::ranges::includes(policy_.offloaded, tie.names);
    if (!restriction_.link && !is_offloaded) return;
    TrainerPolicy policy = policy_;
    policy.saved = NamesWithout(policy.saved, tie.names);
    policy.offloaded = NamesWithout(policy.offloaded, tie.names);
    if (!is_offloaded) {
      std::vector<std::string> names;
      std::ranges::merge(policy.offloaded, tie.names,
                         std::back_inserter(names));
      policy.offloaded = std::move(names);
    }
    Add(fmt::format("offload {}{}", fmt::join(tie.names, ", "),
                    is_offloaded ? " no longer" : ""),
        std::move(policy));
  }

  const RestrictedTrace& restriction_;
  const Language& language_;
  const TrainerPolicy& policy_;
  std::vector<PolicyChange> changes_;
};

bool IsBetter(const PolicyEffect& one, const PolicyEffect& other,
              double same_ms) {
  if (one.CostMs() < other.CostMs() - same_ms) return true;
  return one.CostMs() <= other.CostMs() + same_ms &&
         one.peak_bytes < other.peak_bytes;
}

}  // namespace

std::optional<PolicyEffect> EffectOf(const RestrictedTrace& restriction,
                                     const TrainerPolicy& policy) {
  const std::optional<graph::Simulation> use =
      SimulatedUse(restriction.TraceProblemOf(policy.blocks),
                   PlannedUnitsOf(restriction, policy));
  if (!use) return std::nullopt;
  const auto stall_ms = StallMs(restriction, policy.blocks, *use);
  if (!stall_ms) return std::nullopt;
  return PolicyEffect{.peak_bytes = use->peak_bytes,
                      .recompute_ms = use->recompute_ms,
                      .overhead = (use->recompute_ms + *stall_ms) /
                                  restriction.problem->baseline.runtime_ms,
                      .stall_ms = *stall_ms};
}

std::vector<PlannedModule> ModulesOf(const RestrictedTrace& restriction,
                                     const TrainerPolicy& policy) {
  const PlanningProblem& problem = restriction.ProblemOf(policy.blocks);
  return DecodeUnits(*problem.profile, *problem.tree,
                     restriction.TraceProblemOf(policy.blocks),
                     PlannedUnitsOf(restriction, policy));
}

std::optional<std::string> BrokenRuleOf(const RestrictedTrace& restriction,
                                        const Language& language,
                                        const TrainerPolicy& policy) {
  const PlanningProblem& problem = restriction.ProblemOf(policy.blocks);
  const graph::Trace& trace = *problem.trace;
  const SacOfModules sac_of_modules(*problem.profile);
  const std::vector<graph::ModuleId> units =
      UnitModules(trace, restriction.BlocksIn(policy.blocks), policy.blocks);
  if (auto refusal = RandomRefusal(trace, language, units)) return refusal;
  const Ties ties(trace, sac_of_modules, language, units);
  std::string broken = ties.BrokenRuleOf(policy.KeptNames());
  if (!broken.empty()) return broken;
  // No rule about memory is broken within this budget.
  Plan plan = PlanWithoutAnswer(problem, std::numeric_limits<int64_t>::max(),
                                solver::StoppedBy::kNothing);
  plan.modules = ModulesOf(restriction, policy);
  return FirstBrokenRule(*problem.profile, plan, {}, problem.trace);
}

std::vector<PolicyChange> SingleChanges(const RestrictedTrace& restriction,
                                        const Language& language,
                                        const TrainerPolicy& policy) {
  return Changes(restriction, language, policy).Find();
}

BestChangeAnswer FindBestChange(const RestrictedTrace& restriction,
                                const Language& language,
                                const TrainerPolicy& policy,
                                const PolicyEffect& effect,
                                const PolicyLimit& limit) {
  const double same_ms = kSameShare * restriction.problem->baseline.runtime_ms;
  const bool fits = limit.Allows(policy, effect);
  BestChangeAnswer answer;
  for (PolicyChange& change : SingleChanges(restriction, language, policy)) {
    ++answer.change_count;
    const std::optional<PolicyEffect> changed =
        EffectOf(restriction, change.policy);
    if (!changed || changed->peak_bytes > limit.usable_bytes) continue;
    const bool is_better =
        answer.best ? IsBetter(*changed, answer.best->effect, same_ms)
                    : !fits || IsBetter(*changed, effect, same_ms);
    if (!is_better || BrokenRuleOf(restriction, language, change.policy) ||
        !limit.Allows(change.policy, *changed)) {
      continue;
    }
    answer.best = {.change = std::move(change), .effect = *changed};
  }
  return answer;
}

}  // namespace acplan::problems
