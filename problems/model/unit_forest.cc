#include "problems/model/unit_forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "problems/model/memory_model.h"

namespace acplan::problems {

using graph::Module;
using graph::ModuleTree;
using graph::Profile;

namespace {

// Returns a module's type, such as "GPT.h.*.attn" for "GPT.h.3.attn".
std::string TypeName(const std::string& fqn) {
  std::string type;
  size_t begin = 0;
  while (begin <= fqn.size()) {
    const size_t end = std::min(fqn.find('.', begin), fqn.size());
    const std::string component = fqn.substr(begin, end - begin);
    const bool number =
        !component.empty() && std::ranges::all_of(component, [](char c) {
          return c >= '0' && c <= '9';
        });
    type += (begin == 0 ? "" : ".") + (number ? "*" : component);
    begin = end + 1;
  }
  return type;
}

struct Restriction {
  std::vector<char> is_allowed;  // a node: may it be a unit?
  std::vector<std::string> warnings;
};

Restriction RestrictUnits(const Profile& profile, const ModuleTree& tree,
                          const ModuleProblemOptions& options) {
  const std::vector<int> ac_units =
      graph::FindModules(profile, tree, options.ac_units, "--ac-units");
  const std::vector<int> fsdp_units =
      graph::FindModules(profile, tree, options.fsdp_units, "--fsdp-units");
  Restriction result;
  std::vector<char>& is_allowed = result.is_allowed;
  is_allowed.assign(tree.size(), ac_units.empty() ? 1 : 0);
  for (const int i : ac_units) is_allowed[i] = 1;
  std::vector<char> above_fsdp(tree.size(), 0);
  for (const int unit : fsdp_units) {
    for (int i = tree.node(unit).parent; i >= 0 && !above_fsdp[i];
         i = tree.node(i).parent) {
      above_fsdp[i] = 1;
    }
  }
  for (const int i : ac_units) {
    const Module& module = profile.modules[tree.node(i).module];
    if (module.is_leaf) {
      result.warnings.push_back(fmt::format(
          "--ac-units: {} is a leaf; leaves are never AC units", module.fqn));
    } else if (module.calls == 0) {
      result.warnings.push_back(fmt::format(
          "--ac-units: {} is never called, so it cannot be an AC unit",
          module.fqn));
    } else if (above_fsdp[i]) {
      result.warnings.push_back(fmt::format(
          "--ac-units: {} contains an FSDP unit, so it cannot be an AC unit",
          module.fqn));
    }
  }
  for (int i = 0; i < tree.size(); ++i) {
    if (above_fsdp[i]) is_allowed[i] = 0;
  }
  return result;
}

bool AddsUp(const Module& module) {
  const auto adds_up = [](const std::optional<graph::MemorySnapshot>& s) {
    return !s || std::accumulate(s->begin(), s->begin() + graph::kTotal,
                                 int64_t{0}) == (*s)[graph::kTotal];
  };
  return !module.snap ||
         (adds_up(module.snap->peak_fw) && adds_up(module.snap->peak_bw));
}

// Returns the largest number of candidates that do not contain one another.
int MostUnits(const ModuleProblem& problem) {
  const int n = static_cast<int>(problem.nodes.size());
  std::vector<int> most(n, 0);
  int total = 0;
  for (int i = n - 1; i >= 0; --i) {
    for (int c = i + 1; c < i + problem.nodes[i].subtree_size;
         c += problem.nodes[c].subtree_size) {
      most[i] += most[c];
    }
    if (most[i] == 0 && !problem.nodes[i].curve.empty()) most[i] = 1;
  }
  for (int i = 0; i < n; i += problem.nodes[i].subtree_size) total += most[i];
  return total;
}

}  // namespace

std::string WarningsByType::Entry::Modules() const {
  return modules == 1 ? fqn : fmt::format("{} ({} modules)", type, modules);
}

void WarningsByType::Add(const std::string& fqn, const std::string& kind,
                         const std::string& details, int64_t bytes) {
  const auto [it, is_new] =
      index_.try_emplace({TypeName(fqn), kind}, entries_.size());
  if (is_new) entries_.push_back({fqn, it->first.first, kind + details, 0, 0});
  Entry& entry = entries_[it->second];
  ++entry.modules;
  entry.bytes += bytes;
}

std::vector<std::string> WarningsByType::Lines() const {
  std::vector<std::string> lines;
  for (const Entry& e : entries_) {
    lines.push_back(fmt::format("{}: {}", e.Modules(), e.text));
  }
  return lines;
}

std::vector<std::string> UnitForest::Warnings() const {
  std::vector<std::string> lines = warnings;
  std::ranges::move(by_type.Lines(), std::back_inserter(lines));
  return lines;
}

UnitForest BuildUnitForest(const Profile& profile, const ModuleTree& tree,
                           const ModuleProblemOptions& options) {
  UnitForest forest;
  ModuleProblem& problem = forest.problem;
  problem.budget_bytes = options.budget_bytes;
  problem.max_units = options.max_units;
  problem.prefix_structure = tree.PostOrderMatchesTree();
  problem.nodes.resize(tree.size());
  for (const MemoryRecord& record :
       MemoryRecords(profile, tree, options.memory)) {
    if (record.node < 0) {
      problem.fixed_bytes = std::max(problem.fixed_bytes, record.base_bytes);
    } else {
      problem.nodes[record.node].base_bytes = record.base_bytes;
    }
  }
  Restriction restriction = RestrictUnits(profile, tree, options);
  forest.warnings = std::move(restriction.warnings);
  forest.may_be_unit.assign(tree.size(), 0);
  for (int i = 0; i < tree.size(); ++i) {
    const Module& module = profile.modules[tree.node(i).module];
    ModuleProblem::Node& node = problem.nodes[i];
    node.subtree_size = tree.node(i).subtree_size;
    node.time = tree.node(i).fw_post;
    if (options.memory.model != MemoryModel::kTorch && node.time >= 0 &&
        !AddsUp(module)) {
      forest.by_type.Add(
          module.fqn,
          "a snapshot's total is not the sum of its categories; the sum is "
          "used");
    }
    forest.may_be_unit[i] =
        !module.is_leaf && node.time >= 0 && restriction.is_allowed[i] ? 1 : 0;
  }
  return forest;
}

void DropUselessLimit(ModuleProblem& problem) {
  if (problem.max_units && *problem.max_units >= MostUnits(problem)) {
    problem.max_units.reset();
  }
}

}  // namespace acplan::problems
