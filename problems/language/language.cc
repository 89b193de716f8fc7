#include "problems/language/language.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "graph/base/input_error.h"
#include "graph/profile/profile.h"
#include "problems/language/module_parts.h"
#include "problems/language/ties.h"

// The choices of a language, and for each its ties (ties.h) with what they spare.

namespace acplan::problems {

using graph::Flag;
using graph::ModuleId;
using graph::OperatorDecision;
using graph::OperatorId;
using graph::Trace;

namespace {

// Classes beyond these are not tried in all sets.
constexpr size_t kMostClasses = 10;

// Makes the choices of a language.
class Choices {
 public:
  Choices(RestrictedTrace& restriction, const Language& language)
      : restriction_(restriction), language_(language) {}

  void Add(const BlockChoice& blocks) {
    if (!HasStep(blocks)) return;
    const std::vector<ModuleId> modules = ModulesOf(blocks);
    if (modules.empty() || HasNested(blocks, modules) ||
        !units_.insert(UnitKey(blocks)).second) {
      return;
    }
    const PlanningProblem& problem = restriction_.ProblemOf(blocks);
    if (std::optional<std::string> refusal =
            RandomRefusal(*problem.trace, language_, modules)) {
      restriction_.notes.push_back(std::move(*refusal));
      return;
    }
    const Ties ties(*problem.trace, SacOfModules(*problem.profile), language_,
                    modules);
    UnitChoice choice{.policy = language_.Saving(blocks)};
    const auto rerun_counts = RunsAgain(choice.policy);
    if (!rerun_counts) return;
    std::vector<OperatorTie> list = ties.Find();
    AddAlways(ties.names(), list);
    for (OperatorTie& tie : list) {
      tie.ms = MsOf(choice.policy, tie.names, *rerun_counts);
    }
    std::ranges::stable_sort(list, std::greater(), &OperatorTie::ms);
    for (OperatorTie& tie : list) choice.ties.push_back(std::move(tie));
    if (language_.matches_parts) FindImplications(ties.names(), choice);
    choice.whole_ms = *rerun_ms_;
    restriction_.choices.push_back(choice);
    AddSets(ties, *rerun_counts, choice);
  }

 private:
  // Makes the step of a choice, if it is another one than the trace. Returns false if there
  // is no such step.
  bool HasStep(const BlockChoice& blocks) {
    const StepChange change = ChangeOf(blocks);
    if (change.IsNone() || restriction_.StepOf(blocks) != nullptr) return true;
    std::optional<Trace> trace =
        WithChange(*restriction_.problem->trace, restriction_.blocks, change);
    if (!trace) return false;
    restriction_.changed_steps.emplace_back(
        change,
        std::make_shared<const ChangedStep>(
            std::move(*trace), *restriction_.problem, restriction_.blocks));
    return true;
  }

  std::vector<ModuleId> ModulesOf(const BlockChoice& blocks) const {
    return UnitModules(*restriction_.ProblemOf(blocks).trace,
                       restriction_.BlocksIn(blocks), blocks);
  }

  // Returns what tells units apart: their names, and the parts that discard results.
  std::vector<std::string> UnitKey(const BlockChoice& blocks) const {
    std::vector<std::string> key = UnitNames(restriction_, blocks);
    std::ranges::move(ChangeOf(blocks).discarded, std::back_inserter(key));
    return key;
  }

  // Returns whether a module of the choice is inside of another one.
  bool HasNested(const BlockChoice& blocks,
                 const std::vector<ModuleId>& outermost) const {
    return CountOfUnits(*restriction_.ProblemOf(blocks).trace,
                        restriction_.BlocksIn(blocks),
                        blocks) > outermost.size();
  }

  using Reruns = graph::IndexedVector<OperatorId, int32_t>;

  // Returns how often each operator runs again if nothing is saved; nothing if PyTorch
  // refuses that.
  std::optional<Reruns> RunsAgain(const TrainerPolicy& policy) {
    try {
      const graph::Simulation use =
          restriction_.TraceProblemOf(policy.blocks)
              .simulator.Simulate(PlannedUnitsOf(restriction_, policy));
      Reruns rerun_counts(restriction_.problem->trace->operators.size(), 0);
      for (const graph::Simulation::Step& step : use.steps) {
        if (step.redone != graph::kNone) ++rerun_counts[step.op];
      }
      rerun_ms_ = use.recompute_ms;
      return rerun_counts;
    } catch (const InputError& error) {
      restriction_.notes.emplace_back(error.what());
      return std::nullopt;
    }
  }

  // Adds the names that are saved in any case to each tie. They are a tie of their own,
  // too; without it there is none.
  void AddAlways(const std::set<std::string>& names,
                 std::vector<OperatorTie>& ties) const {
    std::set<std::string> always;
    for (const std::string& name : names) {
      if (!MatchesAny(name, language_.always_saved)) continue;
      const auto tie =
          std::ranges::find_if(ties, [&](const OperatorTie& other) {
            return std::ranges::binary_search(other.names, name);
          });
      if (tie == ties.end()) {
        ties.clear();
        return;
      }
      always.insert(tie->names.begin(), tie->names.end());
    }
    for (OperatorTie& tie : ties) {
      std::set<std::string> all(always);
      all.insert(tie.names.begin(), tie.names.end());
      tie.names.assign(all.begin(), all.end());
    }
  }

  double MsOf(TrainerPolicy policy, const std::vector<std::string>& names,
              const Reruns& rerun_counts) const {
    policy.saved = names;
    const Trace& trace = *restriction_.ProblemOf(policy.blocks).trace;
    double ms = 0;
    for (const graph::CheckpointedModule& unit :
         UnitsOf(trace, restriction_.BlocksIn(policy.blocks), policy)) {
      for (const graph::CallId c : trace.calls.ids()) {
        const graph::TraceCall& call = trace.calls[c];
        if (call.module != unit.module || call.no_grad) continue;
        for (const OperatorId op : call.Operators()) {
          const auto place = static_cast<size_t>(call.PlaceOf(op));
          if (place < unit.decisions.size() &&
              graph::Keeps(unit.decisions[place])) {
            ms += rerun_counts[op] * trace.operators[op].runtime_ms;
          }
        }
      }
    }
    return ms;
  }

  // A name whose qualified form is a part of another one's says that as well.
  void FindImplications(const std::set<std::string>& names,
                        UnitChoice& choice) const {
    const auto matches = [](const std::string& part, const std::string& name) {
      return QualifiedName(name).find(QualifiedName(part)) != std::string::npos;
    };
    const auto tie_of = [&](const std::string& name) -> TieId {
      for (const TieId t : choice.ties.ids()) {
        if (std::ranges::binary_search(choice.ties[t].names, name)) return t;
      }
      return graph::kNone;
    };
    std::vector<std::string> excluded_names;
    for (const std::string& name : names) {
      const TieId tie = tie_of(name);
      if (tie == graph::kNone) continue;
      for (const std::string& other : names) {
        if (!matches(name, other)) continue;
        const TieId implied = tie_of(other);
        if (implied == graph::kNone) excluded_names.push_back(name);
        if (implied != graph::kNone && implied != tie) {
          choice.implications.emplace_back(tie, implied);
        }
      }
    }
    if (excluded_names.empty()) return;
    // A name that says more than may be saved cannot be said.
    TieList remaining;
    for (OperatorTie& tie : choice.ties) {
      const bool is_excluded =
          std::ranges::any_of(excluded_names, [&](const std::string& name) {
            return std::ranges::binary_search(tie.names, name);
          });
      if (!is_excluded) remaining.push_back(std::move(tie));
    }
    choice.ties = std::move(remaining);
    choice.implications.clear();
    FindImplications(names, choice);
  }

  void AddSets(const Ties& ties, const Reruns& rerun_counts,
               const UnitChoice& whole_choice) {
    for (const std::vector<std::string>& set : language_.sets) {
      OperatorTie tie;
      for (const std::string& name : ties.names()) {
        if (MatchesAny(name, set)) tie.names.push_back(name);
      }
      if (tie.names.empty() || !ties.MaySave(tie)) continue;
      UnitChoice choice = whole_choice;
      choice.ties = {};
      choice.policy.saved = tie.names;
      choice.whole_ms -= MsOf(choice.policy, tie.names, rerun_counts);
      restriction_.choices.push_back(std::move(choice));
    }
  }

  RestrictedTrace& restriction_;
  const Language& language_;
  std::set<std::vector<std::string>> units_;
  std::optional<double> rerun_ms_;
};

// Returns the classes of modules with children that are called with gradients, except the
// root's.
std::vector<std::string> ClassesOf(const Trace& trace) {
  std::set<std::string> classes;
  for (const ModuleId module : trace.modules.ids()) {
    if (IndexOf(module) == 0) continue;
    if (HasChildren(trace, module) &&
        FirstCallWithGradients(trace, module) != graph::kNone) {
      classes.insert(trace.modules[module].class_name);
    }
  }
  return {classes.begin(), classes.end()};
}

// Adds all sets of names, of which there may be many.
void AddSubsets(BlockKind kind, const std::vector<std::string>& names,
                std::vector<std::string> BlockChoice::*member,
                Choices& choices) {
  const size_t count = std::min(names.size(), kMostClasses);
  for (size_t set = 1; set < (size_t{1} << count); ++set) {
    BlockChoice choice{.kind = kind};
    for (size_t k = 0; k < count; ++k) {
      if ((set >> k & 1) != 0) (choice.*member).push_back(names[k]);
    }
    choices.Add(choice);
  }
}

void AddChoices(BlockKind kind, const RestrictedTrace& restriction,
                Choices& choices) {
  const Trace& trace = *restriction.problem->trace;
  const auto count = static_cast<int32_t>(restriction.blocks.size());
  switch (kind) {
    case BlockKind::kAll:
      choices.Add({.kind = kind});
      break;
    case BlockKind::kFirst:
      for (int32_t n = 1; n <= count; ++n)
        choices.Add({.kind = kind, .end = n});
      break;
    case BlockKind::kEvery:
      for (int32_t n = 1; n <= count; ++n) {
        choices.Add({.kind = kind, .period = n});
      }
      break;
    case BlockKind::kRange:
      for (int32_t begin = 1; begin < count; ++begin) {
        for (int32_t end = begin + 1; end <= count; ++end) {
          choices.Add({.kind = kind, .begin = begin, .end = end});
        }
      }
      break;
    case BlockKind::kRuns:
      for (int32_t n = 2; n <= count; ++n) {
        choices.Add({.kind = kind, .period = n});
      }
      break;
    case BlockKind::kClasses:
      AddSubsets(kind, ClassesOf(trace), &BlockChoice::classes, choices);
      break;
    case BlockKind::kParts:
      AddSubsets(kind, PartsOf(trace, restriction.blocks), &BlockChoice::parts,
                 choices);
      break;
    case BlockKind::kNone:
      break;
  }
}

}  // namespace

std::shared_ptr<const ChangedStep> RestrictedTrace::StepOf(
    const BlockChoice& choice) const {
  const StepChange change = ChangeOf(choice);
  for (const auto& [other, step] : changed_steps) {
    if (other == change) return step;
  }
  return nullptr;
}

const PlanningProblem& RestrictedTrace::ProblemOf(
    const BlockChoice& choice) const {
  const auto step = StepOf(choice);
  return step == nullptr ? *problem : step->problem;
}

const std::vector<ModuleId>& RestrictedTrace::BlocksIn(
    const BlockChoice& choice) const {
  const auto step = StepOf(choice);
  return step == nullptr ? blocks : step->blocks;
}

std::vector<std::string> UnitNames(const RestrictedTrace& restriction,
                                   const BlockChoice& choice) {
  const Trace& trace = *restriction.ProblemOf(choice).trace;
  std::vector<std::string> names;
  for (const ModuleId module :
       UnitModules(trace, restriction.BlocksIn(choice), choice)) {
    names.push_back(trace.modules[module].fqn);
  }
  return names;
}

bool HasLora(const Trace& trace) {
  return std::ranges::any_of(
      trace.modules, [](const graph::TraceModule& module) {
        return module.fqn.ends_with(".lora_A") ||
               module.fqn.find(".lora_A.") != std::string::npos;
      });
}

std::vector<graph::CheckpointedModule> PlannedUnitsOf(
    const RestrictedTrace& restriction, const TrainerPolicy& policy) {
  const PlanningProblem& problem = restriction.ProblemOf(policy.blocks);
  return PlannedUnits(
      *problem.trace, SacOfModules(*problem.profile),
      UnitsOf(*problem.trace, restriction.BlocksIn(policy.blocks), policy));
}

TrainerPolicy PolicyOf(const UnitChoice& choice,
                       const graph::IndexedVector<TieId, Flag>& saves,
                       const graph::IndexedVector<TieId, Flag>& offloads) {
  TrainerPolicy policy = choice.policy;
  std::set<std::string> saved(policy.saved.begin(), policy.saved.end());
  std::set<std::string> offloaded;
  for (const TieId t : choice.ties.ids()) {
    const std::vector<std::string>& names = choice.ties[t].names;
    if (saves[t]) saved.insert(names.begin(), names.end());
    if (!offloads.empty() && offloads[t]) {
      offloaded.insert(names.begin(), names.end());
    }
  }
  policy.saved.assign(saved.begin(), saved.end());
  policy.offloaded.assign(offloaded.begin(), offloaded.end());
  return policy;
}

RestrictedTrace Restrict(const PlanningProblem& problem,
                         const Language& language,
                         std::vector<ModuleId> blocks) {
  if (!language.never_saved_with_lora.empty() && HasLora(*problem.trace)) {
    Language plain = language;
    std::ranges::move(plain.never_saved_with_lora,
                      std::back_inserter(plain.never_saved));
    plain.never_saved_with_lora.clear();
    return Restrict(problem, plain, std::move(blocks));
  }
  RestrictedTrace restriction{
      .problem = &problem, .blocks = std::move(blocks), .link = language.link};
  if (language.may_have_no_unit) restriction.choices.push_back({});
  Choices choices(restriction, language);
  for (const BlockKind kind : language.blocks) {
    if (kind != BlockKind::kClasses && restriction.blocks.empty()) {
      throw InputError(
          "blocks: expected modules with numbers for names, as layers.0, found "
          "none; use --blocks");
    }
    AddChoices(kind, restriction, choices);
  }
  return restriction;
}

}  // namespace acplan::problems
