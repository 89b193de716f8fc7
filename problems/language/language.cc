#include "problems/language/language.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <variant>

#include "graph/base/input_error.h"
#include "graph/profile/profile.h"

// How a language becomes choices and ties.
//
// A tie begins as one name. Two names are joined where operators of both are in one group
// of a unit (graph/profile/sac_statistics.h), which every plan decides together. A tie is
// left out where a name of it is saved at a place that must not be: a view, or a product
// of a group whose others are not saved. What remains is a free choice, but for
// implications, and every plan of the language is one of its points: a name that is in no
// tie may not be saved. Ties that spare nothing count, too: what runs again needs less
// memory at some operators if they are saved.

namespace acplan::problems {

using graph::Flag;
using graph::ModuleId;
using graph::OperatorDecision;
using graph::OperatorId;
using graph::Trace;

namespace {

// Classes beyond these are not tried in all sets.
constexpr size_t kMostClasses = 10;

bool MatchesAny(const std::string& name,
                const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return graph::MatchesPattern(name, pattern);
  });
}

// The statistics of modules whose operators a plan decides.
class SacOfModules {
 public:
  explicit SacOfModules(const graph::Profile& profile) {
    for (const graph::Module& module : profile.modules) {
      if (module.sac) sac_[module.fqn] = &*module.sac;
    }
  }

  const graph::SacStatistics* Find(const std::string& fqn) const {
    const auto entry = sac_.find(fqn);
    return entry == sac_.end() ? nullptr : entry->second;
  }

 private:
  std::unordered_map<std::string_view, const graph::SacStatistics*> sac_;
};

// Saves the operators in place on what is older than the unit, and those in place on
// their results.
void SaveUpdates(const graph::SacStatistics& sac,
                 std::vector<OperatorDecision>& decisions) {
  std::set<int> updates;
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op != parent && !updates.contains(parent)) continue;
    updates.insert(op);
    decisions[op] = OperatorDecision::kSave;
  }
}

std::vector<graph::CheckpointedModule> Planned(
    const Trace& trace, const SacOfModules& sac_of_modules,
    std::vector<graph::CheckpointedModule> units) {
  for (graph::CheckpointedModule& unit : units) {
    const graph::SacStatistics* sac =
        sac_of_modules.Find(trace.modules[unit.module].fqn);
    if (sac == nullptr) continue;
    if (unit.decisions.empty()) {
      unit.decisions.assign(sac->func_names.size(),
                            OperatorDecision::kRecompute);
    }
    SaveUpdates(*sac, unit.decisions);
  }
  return units;
}

// Names as a disjoint-set forest.
class NameSets {
 public:
  explicit NameSets(const std::set<std::string>& names) {
    for (const std::string& name : names) parent_[name] = name;
  }

  const std::string& Find(const std::string& name) {
    std::string& parent = parent_.at(name);
    if (parent != name) parent = Find(parent);
    return parent;
  }

  void Join(const std::string& one, const std::string& other) {
    const std::string root = Find(one);
    parent_[root] = Find(other);
  }

 private:
  std::map<std::string, std::string> parent_;
};

// Makes the ties of one choice.
class Ties {
 public:
  Ties(const Trace& trace, const SacOfModules& sac_of_modules,
       const Language& language, std::vector<ModuleId> modules)
      : trace_(trace), language_(language) {
    for (const ModuleId module : modules) {
      const graph::SacStatistics* sac =
          sac_of_modules.Find(trace.modules[module].fqn);
      if (sac != nullptr) {
        units_.push_back({module, sac, graph::GroupOperators(*sac)});
      } else {
        is_whole_ = true;
      }
    }
    for (const Unit& unit : units_) {
      ForEachOperator(unit, [&](const std::string& name, int) {
        names_.insert(name);
      });
    }
  }

  // Returns ties whose ms is not set yet.
  std::vector<OperatorTie> Find() {
    if (is_whole_ || !language_.takes_names) return {};
    NameSets sets(names_);
    for (const Unit& unit : units_) Join(unit, sets);
    std::map<std::string, OperatorTie> ties;
    for (const std::string& name : names_) {
      ties[sets.Find(name)].names.push_back(name);
    }
    std::vector<OperatorTie> list;
    for (auto& [root, tie] : ties) {
      if (MaySave(tie)) list.push_back(std::move(tie));
    }
    return list;
  }

  // Returns whether a set of names keeps the rules of every unit.
  bool MaySave(const OperatorTie& tie) const {
    if (tie.names.empty()) return true;
    const TrainerPolicy policy{.saved = tie.names,
                               .product_period = language_.product_period};
    const bool is_excluded =
        std::ranges::any_of(tie.names, [&](const std::string& name) {
          return MatchesAny(name, language_.never_saved);
        });
    return !is_excluded && !is_whole_ &&
           std::ranges::all_of(units_, [&](const Unit& unit) {
             return KeepsRules(unit,
                               DecisionsOf(trace_, unit.module, policy));
           });
  }

  const std::set<std::string>& names() const { return names_; }

 private:
  struct Unit {
    ModuleId module = {};
    const graph::SacStatistics* sac = nullptr;
    graph::OperatorGroups groups = {};
  };

  // Calls `visit` with the name in the trace and the place of each operator.
  template <typename Visit>
  void ForEachOperator(const Unit& unit, const Visit& visit) const {
    const graph::TraceCall& call =
        trace_.calls[FirstCallWithGradients(trace_, unit.module)];
    for (const OperatorId op : call.Operators()) {
      visit(trace_.operator_names[trace_.operators[op].name],
            call.PlaceOf(op));
    }
  }

  void Join(const Unit& unit, NameSets& sets) const {
    std::vector<std::string> first(unit.groups.groups.size());
    ForEachOperator(unit, [&](const std::string& name, int place) {
      std::string& other = first[IndexOf(unit.groups.group_of[place])];
      if (other.empty()) {
        other = name;
      } else {
        sets.Join(name, other);
      }
    });
  }

  static bool KeepsRules(const Unit& unit,
                         const std::vector<OperatorDecision>& decisions) {
    for (const graph::OperatorGroup& group : unit.groups.groups) {
      const auto saves = [&](int op) { return graph::Keeps(decisions[op]); };
      if (std::ranges::none_of(group.ops, saves)) continue;
      if (group.rule == graph::GroupRule::kRecompute ||
          !std::ranges::all_of(group.ops, saves)) {
        return false;
      }
    }
    return true;
  }

  const Trace& trace_;
  const Language& language_;
  std::vector<Unit> units_;
  std::set<std::string> names_;
  bool is_whole_ = false;  // a unit has no decisions
};

// Makes the choices of a language.
class Choices {
 public:
  Choices(RestrictedTrace& restriction, const Language& language)
      : restriction_(restriction),
        language_(language),
        trace_(*restriction.problem->trace),
        sac_(*restriction.problem->profile) {}

  void Add(const BlockChoice& blocks) {
    const std::vector<ModuleId> modules =
        UnitModules(trace_, restriction_.blocks, blocks);
    if (modules.empty() || HasNested(blocks, modules) ||
        !units_.insert(modules).second) {
      return;
    }
    Ties ties(trace_, sac_, language_, modules);
    UnitChoice choice{.policy = {.blocks = blocks,
                                 .product_period = language_.product_period,
                                 .stops_early = language_.stops_early}};
    const auto again = RunsAgain(choice.policy);
    if (!again) return;
    std::vector<OperatorTie> list = ties.Find();
    AddAlways(ties.names(), list);
    for (OperatorTie& tie : list) {
      tie.ms = MsOf(choice.policy, tie.names, *again);
    }
    std::ranges::stable_sort(list, std::greater(), &OperatorTie::ms);
    for (OperatorTie& tie : list) choice.ties.push_back(std::move(tie));
    if (language_.matches_parts) FindImplications(ties.names(), choice);
    choice.whole_ms = *again_ms_;
    restriction_.choices.push_back(choice);
    AddSets(ties, *again, choice);
  }

 private:
  // Returns whether a module of the classes is inside of another one.
  bool HasNested(const BlockChoice& blocks,
                 const std::vector<ModuleId>& outermost) const {
    if (blocks.kind != BlockKind::kClasses) return false;
    size_t count = 0;
    for (const ModuleId module : trace_.modules.ids()) {
      if (std::ranges::binary_search(blocks.classes,
                                     trace_.modules[module].class_name) &&
          FirstCallWithGradients(trace_, module) != graph::kNone) {
        ++count;
      }
    }
    return count > outermost.size();
  }

  using Reruns = graph::IndexedVector<OperatorId, int32_t>;

  // Returns how often each operator runs again if nothing is saved; nothing if PyTorch
  // refuses that.
  std::optional<Reruns> RunsAgain(const TrainerPolicy& policy) {
    try {
      const graph::Simulation use =
          restriction_.trace_problem().simulator.Simulate(
              PlannedUnitsOf(restriction_, policy));
      Reruns again(trace_.operators.size(), 0);
      for (const graph::Simulation::Step& step : use.steps) {
        if (step.redone != graph::kNone) ++again[step.op];
      }
      again_ms_ = use.recompute_ms;
      return again;
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
              const Reruns& again) const {
    policy.saved = names;
    double ms = 0;
    for (const graph::CheckpointedModule& unit :
         UnitsOf(trace_, restriction_.blocks, policy)) {
      for (const graph::CallId c : trace_.calls.ids()) {
        const graph::TraceCall& call = trace_.calls[c];
        if (call.module != unit.module || call.no_grad) continue;
        for (const OperatorId op : call.Operators()) {
          const auto place = static_cast<size_t>(call.PlaceOf(op));
          if (place < unit.decisions.size() &&
              graph::Keeps(unit.decisions[place])) {
            ms += again[op] * trace_.operators[op].runtime_ms;
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
      return QualifiedName(name).find(QualifiedName(part)) !=
             std::string::npos;
    };
    const auto tie_of = [&](const std::string& name) -> TieId {
      for (const TieId t : choice.ties.ids()) {
        if (std::ranges::binary_search(choice.ties[t].names, name)) return t;
      }
      return graph::kNone;
    };
    std::vector<std::string> dropped;
    for (const std::string& name : names) {
      const TieId tie = tie_of(name);
      if (tie == graph::kNone) continue;
      for (const std::string& other : names) {
        if (!matches(name, other)) continue;
        const TieId implied = tie_of(other);
        if (implied == graph::kNone) dropped.push_back(name);
        if (implied != graph::kNone && implied != tie) {
          choice.implications.emplace_back(tie, implied);
        }
      }
    }
    if (dropped.empty()) return;
    // A name that says more than may be saved cannot be said.
    TieList remaining;
    for (OperatorTie& tie : choice.ties) {
      const bool is_dropped =
          std::ranges::any_of(dropped, [&](const std::string& name) {
            return std::ranges::binary_search(tie.names, name);
          });
      if (!is_dropped) remaining.push_back(std::move(tie));
    }
    choice.ties = std::move(remaining);
    choice.implications.clear();
    FindImplications(names, choice);
  }

  void AddSets(const Ties& ties, const Reruns& again,
               const UnitChoice& without) {
    for (const std::vector<std::string>& set : language_.sets) {
      OperatorTie tie;
      for (const std::string& name : ties.names()) {
        if (MatchesAny(name, set)) tie.names.push_back(name);
      }
      if (tie.names.empty() || !ties.MaySave(tie)) continue;
      UnitChoice choice = without;
      choice.ties = {};
      choice.policy.saved = tie.names;
      choice.whole_ms -= MsOf(choice.policy, tie.names, again);
      restriction_.choices.push_back(std::move(choice));
    }
  }

  RestrictedTrace& restriction_;
  const Language& language_;
  const Trace& trace_;
  const SacOfModules sac_;
  std::set<std::vector<ModuleId>> units_;
  std::optional<double> again_ms_;
};

// Returns the classes of modules with children that are called with gradients, except the
// root's.
std::vector<std::string> ClassesOf(const Trace& trace) {
  std::set<std::string> classes;
  for (const ModuleId module : trace.modules.ids()) {
    if (IndexOf(module) == 0) continue;
    const ModuleId next = Next(module);
    const bool has_children =
        next < trace.modules.end_id() &&
        trace.modules[next].fqn.starts_with(trace.modules[module].fqn + ".");
    if (has_children && FirstCallWithGradients(trace, module) != graph::kNone) {
      classes.insert(trace.modules[module].class_name);
    }
  }
  return {classes.begin(), classes.end()};
}

void AddClasses(const Trace& trace, Choices& choices) {
  const std::vector<std::string> classes = ClassesOf(trace);
  const size_t count = std::min(classes.size(), kMostClasses);
  for (size_t set = 1; set < (size_t{1} << count); ++set) {
    BlockChoice choice{.kind = BlockKind::kClasses};
    for (size_t k = 0; k < count; ++k) {
      if ((set >> k & 1) != 0) choice.classes.push_back(classes[k]);
    }
    choices.Add(choice);
  }
}

void AddChoices(BlockKind kind, int32_t count, const Trace& trace,
                Choices& choices) {
  switch (kind) {
    case BlockKind::kAll:
      choices.Add({.kind = kind});
      break;
    case BlockKind::kFirst:
      for (int32_t n = 1; n <= count; ++n) choices.Add({.kind = kind, .end = n});
      break;
    case BlockKind::kEvery:
      for (int32_t n = 1; n <= count; ++n) {
        choices.Add({.kind = kind, .period = n});
      }
      break;
    case BlockKind::kClasses:
      AddClasses(trace, choices);
      break;
    case BlockKind::kNone:
      break;
  }
}

bool HasLora(const Trace& trace) {
  return std::ranges::any_of(
      trace.modules, [](const graph::TraceModule& module) {
        return module.fqn.ends_with(".lora_A") ||
               module.fqn.find(".lora_A.") != std::string::npos;
      });
}

}  // namespace

std::vector<graph::CheckpointedModule> PlannedUnitsOf(
    const RestrictedTrace& restriction, const TrainerPolicy& policy) {
  const Trace& trace = *restriction.problem->trace;
  return Planned(trace, SacOfModules(*restriction.problem->profile),
                 UnitsOf(trace, restriction.blocks, policy));
}

TrainerPolicy PolicyOf(const UnitChoice& choice,
                       const graph::IndexedVector<TieId, Flag>& saves) {
  TrainerPolicy policy = choice.policy;
  std::set<std::string> names(policy.saved.begin(), policy.saved.end());
  for (const TieId t : choice.ties.ids()) {
    if (!saves[t]) continue;
    names.insert(choice.ties[t].names.begin(), choice.ties[t].names.end());
  }
  policy.saved.assign(names.begin(), names.end());
  return policy;
}

RestrictedTrace Restrict(const PlanningProblem& problem, const Language& language,
                     std::vector<ModuleId> blocks) {
  if (!language.never_saved_with_lora.empty() && HasLora(*problem.trace)) {
    Language plain = language;
    std::ranges::move(plain.never_saved_with_lora,
                      std::back_inserter(plain.never_saved));
    plain.never_saved_with_lora.clear();
    return Restrict(problem, plain, std::move(blocks));
  }
  RestrictedTrace restriction{.problem = &problem, .blocks = std::move(blocks)};
  restriction.choices.push_back({});
  Choices choices(restriction, language);
  const auto count = static_cast<int32_t>(restriction.blocks.size());
  for (const BlockKind kind : language.blocks) {
    if (kind != BlockKind::kClasses && count == 0) {
      throw InputError(
          "blocks: expected modules with numbers for names, as layers.0, found "
          "none; use --blocks");
    }
    AddChoices(kind, count, *problem.trace, choices);
  }
  return restriction;
}

}  // namespace acplan::problems
