#include "problems/language/ties.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

// A tie begins as one name, or as all names of a value. Two names are joined where one group of operators of a unit
// (graph/profile/sac_statistics.h) has both, because every plan decides a group together. A
// tie is left out where a name of it is saved at a place that must not be: a view, or a
// product in a group whose others are not saved. The remaining ties are free choices, but for
// implications, and every plan of the language is one of their points: a name that is in
// no tie may not be saved. Ties that spare nothing count, too: what runs again needs less
// memory at some operators if they are saved.

namespace acplan::problems {

using graph::ModuleId;
using graph::OperatorDecision;
using graph::OperatorId;
using graph::Trace;

namespace {

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

// Calls `visit` with the name and the place in the call of each operator of a module.
template <typename Visit>
void ForEachOperator(const Trace& trace, ModuleId module, NameKind kind,
                     const Visit& visit) {
  const graph::TraceCall& call =
      trace.calls[FirstCallWithGradients(trace, module)];
  for (const OperatorId op : call.Operators()) {
    visit(NameOf(trace, module, op, kind), call.PlaceOf(op));
  }
}

// Joins the names whose operators are in one group of a module.
void JoinGroups(const Trace& trace, ModuleId module, NameKind kind,
                const graph::OperatorGroups& groups, NameSets& sets) {
  std::vector<std::string> first(groups.groups.size());
  ForEachOperator(trace, module, kind, [&](const std::string& name, int place) {
    std::string& other = first[IndexOf(groups.group_of[place])];
    if (other.empty()) {
      other = name;
    } else {
      sets.Join(name, other);
    }
  });
}

// PyTorch's selective checkpoint refuses a saved result that is written to in place later,
// whatever happens to the operator that writes.
std::string BrokenRule(const graph::SacStatistics& sac,
                       const graph::OperatorGroups& groups,
                       const std::vector<OperatorDecision>& decisions) {
  const auto saves = [&](int op) { return graph::Keeps(decisions[op]); };
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent || !saves(parent)) continue;
    return sac.func_names[parent] +
           " is saved and written to in place later, which PyTorch refuses";
  }
  for (const graph::OperatorGroup& group : groups.groups) {
    const auto saved = std::ranges::find_if(group.ops, saves);
    if (saved == group.ops.end()) continue;
    const std::string& name = sac.func_names[*saved];
    if (group.rule == graph::GroupRule::kRecompute) {
      return name + " is saved and makes a view, which no plan saves";
    }
    const auto other = std::ranges::find_if_not(group.ops, saves);
    if (other == group.ops.end()) continue;
    const bool is_random =
        std::ranges::find(sac.rand_ops, *saved) != sac.rand_ops.end();
    return fmt::format(
        "{} is saved and {} runs again{}", name, sac.func_names[*other],
        is_random ? ", which then draws other random numbers than in the "
                    "forward pass: gradients are wrong"
                  : ", though they must be decided together");
  }
  return "";
}

}  // namespace

bool MatchesAny(const std::string& name,
                const std::vector<std::string>& patterns) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return graph::MatchesPattern(name, pattern);
  });
}

std::vector<graph::CheckpointedModule> PlannedUnits(
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

std::optional<std::string> RandomRefusal(const Trace& trace,
                                         const Language& language,
                                         const std::vector<ModuleId>& units) {
  if (language.replays_random) return std::nullopt;
  for (const ModuleId unit : units) {
    const graph::CallId call = FirstCallWithGradients(trace, unit);
    for (const OperatorId op : trace.calls[call].Operators()) {
      if (!trace.operators[op].random) continue;
      return fmt::format(
          "{}: {} draws other random numbers when it runs again, as the "
          "trainer's checkpoints do not keep the random state: gradients are "
          "wrong",
          trace.modules[unit].fqn,
          trace.operator_names[trace.operators[op].name]);
    }
  }
  return std::nullopt;
}

Ties::Ties(const Trace& trace, const SacOfModules& sac_of_modules,
           const Language& language, const std::vector<ModuleId>& modules)
    : trace_(trace), language_(language) {
  for (const ModuleId module : modules) {
    const graph::SacStatistics* sac =
        sac_of_modules.Find(trace.modules[module].fqn);
    if (sac == nullptr) {
      is_whole_ = true;
      continue;
    }
    units_.push_back({module, sac, graph::GroupOperators(*sac)});
    ForEachOperator(trace, module, language.names(),
                    [&](const std::string& name, int) { names_.insert(name); });
  }
}

std::vector<OperatorTie> Ties::Find() const {
  if (is_whole_ || !language_.takes_names) return {};
  NameSets sets(names_);
  for (const Unit& unit : units_) {
    JoinGroups(trace_, unit.module, language_.names(), unit.groups, sets);
  }
  for (const NamedValue& value : language_.values) {
    const std::string* first = nullptr;
    for (const std::string& name : names_) {
      if (!MatchesAny(name, value.patterns)) continue;
      if (first != nullptr) sets.Join(name, *first);
      first = &name;
    }
  }
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

bool Ties::MaySave(const OperatorTie& tie) const {
  return BrokenRuleOf(tie.names).empty();
}

std::string Ties::BrokenRuleOf(const std::vector<std::string>& saved) const {
  if (saved.empty()) return "";
  for (const std::string& name : saved) {
    if (MatchesAny(name, language_.never_saved)) {
      return name + " cannot be saved in this language";
    }
    const bool has_value =
        std::ranges::any_of(language_.values, [&](const NamedValue& value) {
          return MatchesAny(name, value.patterns);
        });
    if (!language_.values.empty() && !has_value) {
      return name + " is none of the values that this language names";
    }
  }
  if (is_whole_) return "a unit has no operators that can be saved";
  TrainerPolicy policy = language_.Saving({});
  policy.saved = saved;
  for (const Unit& unit : units_) {
    std::string broken = BrokenRule(*unit.sac, unit.groups,
                                    DecisionsOf(trace_, unit.module, policy));
    if (!broken.empty()) return trace_.modules[unit.module].fqn + ": " + broken;
  }
  return "";
}

}  // namespace acplan::problems
