#include "problems/language/trainer_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <utility>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "graph/profile/sac_statistics.h"
#include "problems/language/module_parts.h"

namespace acplan::problems {

using graph::CallId;
using graph::ModuleId;
using graph::OperatorDecision;
using graph::Trace;

namespace {

bool HasNumberForName(std::string_view fqn) {
  const std::string_view name = fqn.substr(fqn.rfind('.') + 1);
  return name.size() < fqn.size() && !name.empty() &&
         std::ranges::all_of(
             name, [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Returns a name with * for each number in it: "model.layers.*".
std::string PatternOfNumbers(std::string_view fqn) {
  std::string pattern;
  while (!fqn.empty()) {
    const size_t dot = std::min(fqn.find('.'), fqn.size());
    const std::string_view name = fqn.substr(0, dot);
    fqn.remove_prefix(std::min(dot + 1, fqn.size()));
    const bool is_number = std::ranges::all_of(
        name, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!pattern.empty()) pattern += '.';
    pattern += is_number ? "*" : name;
  }
  return pattern;
}

// Returns the modules that pass the test and are in no other one. Modules are in
// pre-order, so the one around a module comes right before those inside.
template <typename Test>
std::vector<ModuleId> Outermost(const Trace& trace, const Test& is_one) {
  std::vector<ModuleId> modules;
  for (const ModuleId module : trace.modules.ids()) {
    const std::string& fqn = trace.modules[module].fqn;
    if (!modules.empty() && IsInside(fqn, trace.modules[modules.back()].fqn)) {
      continue;
    }
    if (is_one(module)) modules.push_back(module);
  }
  return modules;
}

bool IsProduct(std::string_view name, bool counts_grouped) {
  if (counts_grouped && (name == "aten._grouped_mm.default" ||
                         name == "aten._scaled_grouped_mm.default")) {
    return true;
  }
  return name == "aten.mm.default" || name == "aten.linear.default";
}

// Returns the segments of a trace, and the blocks that are in none.
std::vector<ModuleId> RunsAndBlocks(const Trace& trace,
                                    const std::vector<ModuleId>& blocks) {
  std::vector<ModuleId> modules;
  ModuleId run_end{0};
  for (const ModuleId module : trace.modules.ids()) {
    const bool is_block = std::ranges::binary_search(blocks, module);
    if (trace.modules[module].IsSegment()) {
      run_end = trace.modules[module].run_end;
      modules.push_back(module);
    } else if (is_block && module >= run_end) {
      modules.push_back(module);
    }
  }
  return modules;
}

}  // namespace

std::vector<std::string> TrainerPolicy::KeptNames() const {
  std::vector<std::string> kept_names;
  std::ranges::merge(saved, offloaded, std::back_inserter(kept_names));
  return kept_names;
}

bool HasBlock(const BlockChoice& choice, int32_t place) {
  switch (choice.kind) {
    case BlockKind::kAll:
      return true;
    case BlockKind::kFirst:
      return place < choice.end;
    case BlockKind::kRange:
      return choice.begin <= place && place < choice.end;
    case BlockKind::kEvery:
      return place % choice.period == 0;
    case BlockKind::kNone:
    case BlockKind::kRuns:
    case BlockKind::kClasses:
    case BlockKind::kParts:
      break;
  }
  return false;
}

bool IsInside(std::string_view fqn, std::string_view other) {
  return fqn.size() > other.size() && fqn.starts_with(other) &&
         fqn[other.size()] == '.';
}

std::vector<ModuleId> BlocksOf(const Trace& trace, const std::string& pattern) {
  graph::IndexedVector<ModuleId, graph::Flag> is_called(trace.modules.size(),
                                                        false);
  for (const graph::TraceCall& call : trace.calls) {
    if (!call.no_grad) is_called[call.module] = true;
  }
  return Outermost(trace, [&](ModuleId module) {
    const std::string& fqn = trace.modules[module].fqn;
    return is_called[module] && HasChildren(trace, module) &&
           (pattern.empty() ? HasNumberForName(fqn)
                            : graph::MatchesPattern(fqn, pattern));
  });
}

std::vector<ModuleId> BlocksLike(const Trace& trace,
                                 const std::string& pattern) {
  std::vector<ModuleId> blocks = BlocksOf(trace, pattern);
  if (!blocks.empty() || pattern.empty()) return blocks;
  std::set<std::string> patterns;
  for (const ModuleId module : trace.modules.ids()) {
    if (!HasChildren(trace, module) || IndexOf(module) == 0) continue;
    const std::string like = PatternOfNumbers(trace.modules[module].fqn);
    patterns.insert(like);
    // The same from each name on, as in "*.layers.*".
    for (size_t dot = like.find('.'); dot != std::string::npos;
         dot = like.find('.', dot + 1)) {
      patterns.insert("*" + like.substr(dot));
    }
  }
  std::vector<std::string> near = graph::NearestNames(
      pattern, std::vector(patterns.begin(), patterns.end()), 1);
  if (near.empty()) {
    for (const ModuleId module : BlocksOf(trace)) {
      near.push_back(PatternOfNumbers(trace.modules[module].fqn));
    }
  }
  throw InputError(fmt::format(
      "--blocks: expected a pattern of modules with others inside, found {}{}",
      graph::Quoted(pattern, 200),
      near.empty() ? "" : "; nearest: " + graph::OneLine(near.front())));
}

std::vector<ModuleId> UnitModules(const Trace& trace,
                                  const std::vector<ModuleId>& blocks,
                                  const BlockChoice& choice) {
  if (choice.kind == BlockKind::kClasses) {
    return Outermost(trace, [&](ModuleId module) {
      return std::ranges::binary_search(choice.classes,
                                        trace.modules[module].class_name) &&
             FirstCallWithGradients(trace, module) != graph::kNone;
    });
  }
  if (choice.kind == BlockKind::kRuns) return RunsAndBlocks(trace, blocks);
  if (choice.kind == BlockKind::kParts) {
    const std::vector<ModuleId> parts =
        ModulesOfParts(trace, blocks, choice.parts);
    return Outermost(trace, [&](ModuleId module) {
      return std::ranges::binary_search(parts, module);
    });
  }
  std::vector<ModuleId> modules;
  for (size_t k = 0; k < blocks.size(); ++k) {
    if (HasBlock(choice, static_cast<int32_t>(k))) modules.push_back(blocks[k]);
  }
  return modules;
}

size_t CountOfUnits(const Trace& trace, const std::vector<ModuleId>& blocks,
                    const BlockChoice& choice) {
  if (choice.kind == BlockKind::kParts) {
    return ModulesOfParts(trace, blocks, choice.parts).size();
  }
  if (choice.kind != BlockKind::kClasses) {
    return UnitModules(trace, blocks, choice).size();
  }
  size_t count = 0;
  for (const ModuleId module : trace.modules.ids()) {
    if (std::ranges::binary_search(choice.classes,
                                   trace.modules[module].class_name) &&
        FirstCallWithGradients(trace, module) != graph::kNone) {
      ++count;
    }
  }
  return count;
}

std::string NameOf(const Trace& trace, ModuleId unit, graph::OperatorId op,
                   NameKind kind) {
  const graph::TraceOperator& fact = trace.operators[op];
  const std::string& name = trace.operator_names[fact.name];
  if (kind == NameKind::kOperators) return name;
  const std::string& fqn = trace.modules[trace.calls[fact.call].module].fqn;
  const std::string& unit_fqn = trace.modules[unit].fqn;
  return (IsInside(fqn, unit_fqn) ? fqn.substr(unit_fqn.size() + 1) : "") +
         ":" + name;
}

std::vector<OperatorDecision> DecisionsOf(const Trace& trace, ModuleId module,
                                          const TrainerPolicy& policy) {
  if (policy.saved.empty() && policy.offloaded.empty()) return {};
  const CallId call = FirstCallWithGradients(trace, module);
  if (call == graph::kNone) return {};
  std::vector<OperatorDecision> decisions;
  int32_t products = 0;
  for (const graph::OperatorId op : trace.calls[call].Operators()) {
    const std::string place = NameOf(trace, module, op, policy.names);
    if (std::ranges::binary_search(policy.offloaded, place)) {
      decisions.push_back(OperatorDecision::kOffload);
      continue;
    }
    bool is_saved = std::ranges::binary_search(policy.saved, place);
    const std::string& name = trace.operator_names[trace.operators[op].name];
    if (IsProduct(name, policy.counts_grouped)) {
      ++products;
      is_saved = is_saved && (policy.product_period == 1 ||
                              products % policy.product_period != 0);
    }
    decisions.push_back(graph::SaveOrRecompute(is_saved));
  }
  return decisions;
}

std::vector<graph::CheckpointedModule> UnitsOf(
    const Trace& trace, const std::vector<ModuleId>& blocks,
    const TrainerPolicy& policy) {
  std::vector<graph::CheckpointedModule> units;
  for (const ModuleId module : UnitModules(trace, blocks, policy.blocks)) {
    units.push_back({.module = module,
                     .decisions = DecisionsOf(trace, module, policy),
                     .stops_early = policy.stops_early});
  }
  return units;
}

bool HasChildren(const Trace& trace, ModuleId module) {
  const ModuleId next = Next(module);
  return next < trace.modules.end_id() &&
         IsInside(trace.modules[next].fqn, trace.modules[module].fqn);
}

CallId FirstCallWithGradients(const Trace& trace, ModuleId module) {
  for (const CallId c : trace.calls.ids()) {
    if (trace.calls[c].module == module && !trace.calls[c].no_grad) return c;
  }
  return graph::kNone;
}

std::string QualifiedName(std::string_view name) {
  const size_t dot = name.find('.');
  const bool has_place = name.find(':') != std::string_view::npos;
  if (dot == std::string_view::npos || has_place) return std::string(name);
  std::string_view rest = name.substr(dot + 1);
  if (rest.ends_with(".default")) rest.remove_suffix(8);
  return std::string(name.substr(0, dot)) + "::" + std::string(rest);
}

std::string TracedName(std::string_view qualified_name) {
  const size_t colons = qualified_name.find("::");
  if (colons == std::string_view::npos) return std::string(qualified_name);
  std::string name(qualified_name.substr(0, colons));
  name += '.';
  name += qualified_name.substr(colons + 2);
  const bool has_overload =
      qualified_name.find('.', colons) != std::string_view::npos;
  if (!has_overload) name += ".default";
  return name;
}

}  // namespace acplan::problems
