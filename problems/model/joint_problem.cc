#include "problems/model/joint_problem.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "graph/profile/unmatched_patterns.h"
#include "problems/model/unit_forest.h"
#include "solver/labels/group_cover.h"

namespace acplan::problems {

using solver::Cover;
using solver::CoverItem;
using solver::LeastCover;

using graph::GroupRule;
using graph::Module;
using graph::ModuleTree;
using graph::OperatorGroup;
using graph::OperatorGroups;
using graph::Profile;

namespace {

JointProblem::Policies PoliciesOf(const Module& module,
                                  const OperatorGroups& groups,
                                  int64_t held_bytes) {
  JointProblem::Policies policies;
  int64_t most_saved = 0;
  int64_t recomputed_for_nothing = 0;
  std::map<std::pair<int64_t, double>, int> count;
  for (const OperatorGroup& group : groups.groups) {
    if (group.rule == GroupRule::kRecompute) continue;
    most_saved += group.memory;
    if (group.rule == GroupRule::kSave || group.memory == 0) continue;
    if (group.runtime == 0) {
      recomputed_for_nothing += group.memory;
    } else {
      ++count[{group.memory, group.runtime}];
    }
  }
  policies.base_bytes =
      std::min(module.act_fw_per_module, groups.TotalBytes()) - most_saved -
      held_bytes + recomputed_for_nothing;
  policies.base_ms = groups.ForcedRuntime();
  for (const auto& [kind, n] : count) {
    policies.kinds.push_back(
        {.bytes = kind.first, .ms = kind.second, .count = n});
  }
  std::ranges::stable_sort(policies.kinds,
                           [](const GroupKind& a, const GroupKind& b) {
                             return a.ms / static_cast<double>(a.bytes) <
                                    b.ms / static_cast<double>(b.bytes);
                           });
  return policies;
}

std::vector<CoverItem> ItemsOf(const std::vector<GroupKind>& kinds) {
  std::vector<CoverItem> items;
  for (const GroupKind& kind : kinds) {
    items.insert(items.end(), kind.count, {.bytes = kind.bytes, .ms = kind.ms});
  }
  return items;
}

// Returns the statistics without their random operators: on traces an operator
// that runs again draws from a random state of its own.
graph::SacStatistics WithoutRandomRules(graph::SacStatistics sac) {
  sac.rand_ops.clear();
  return sac;
}

void RefuseUnmatched(const Profile& profile,
                     const std::vector<std::string>& patterns,
                     std::string_view flag) {
  if (patterns.empty()) return;
  std::set<std::string> names;
  for (const Module& module : profile.modules) {
    if (module.sac) {
      names.insert(module.sac->func_names.begin(),
                   module.sac->func_names.end());
    }
  }
  graph::RefuseUnmatched(patterns, names, flag);
}

}  // namespace

std::vector<PolicyPoint> HullPoints(const std::vector<PolicyPoint>& points) {
  std::vector<PolicyPoint> hull;
  hull.reserve(points.size());
  const auto slope = [](const PolicyPoint& a, const PolicyPoint& b) {
    return (b.ms - a.ms) / static_cast<double>(b.bytes - a.bytes);
  };
  for (const PolicyPoint& point : points) {
    while (hull.size() > 1 && slope(hull[hull.size() - 2], hull.back()) >=
                                  slope(hull.back(), point)) {
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return hull;
}

std::vector<Knot> HullOf(const JointProblem::Policies& policies) {
  std::vector<PolicyPoint> corners = HullPoints(policies.points);
  if (corners.empty()) {
    corners.reserve(policies.kinds.size() + 1);
    corners.push_back({policies.base_bytes, policies.base_ms});
    for (const GroupKind& kind : policies.kinds) {
      corners.push_back({corners.back().bytes + kind.bytes * kind.count,
                         corners.back().ms + kind.ms * kind.count});
    }
  }
  std::vector<Knot> curve;
  curve.reserve(corners.size() + 1);
  int64_t bytes = policies.base_bytes;
  double ms = policies.base_ms;
  if (bytes >= 0) curve.push_back({static_cast<double>(bytes), ms});
  for (size_t k = 1; k < corners.size(); ++k) {
    const int64_t before = bytes;
    const double ms_before = ms;
    bytes = corners[k].bytes;
    ms = corners[k].ms;
    if (bytes < 0) continue;
    if (before < 0 && bytes > 0) {
      const double share =
          static_cast<double>(-before) / static_cast<double>(bytes - before);
      curve.push_back({0, ms_before + share * (ms - ms_before)});
    }
    curve.push_back({static_cast<double>(bytes), ms});
  }
  if (curve.empty()) curve.push_back({0, policies.base_ms});
  return curve;
}

int64_t JointProblem::Policies::MostBytes() const {
  if (!points.empty()) return points.back().bytes;
  int64_t bytes = base_bytes;
  for (const GroupKind& kind : kinds) bytes += kind.bytes * kind.count;
  return bytes;
}

int64_t JointProblem::Policies::BytesOf(const std::vector<int>& counts) const {
  if (!points.empty()) return points[counts[0]].bytes;
  int64_t bytes = base_bytes;
  for (size_t k = 0; k < kinds.size(); ++k) bytes += kinds[k].bytes * counts[k];
  return bytes;
}

double JointProblem::Policies::MsOf(const std::vector<int>& counts) const {
  if (!points.empty()) return points[counts[0]].ms;
  double ms = base_ms;
  for (size_t k = 0; k < kinds.size(); ++k) ms += kinds[k].ms * counts[k];
  return ms;
}

std::vector<int> JointProblem::Policies::LeastCounts(
    int64_t bytes, const solver::SearchLimits& limits) const {
  if (!points.empty()) {
    const auto cheapest =
        std::ranges::lower_bound(points, bytes, {}, &PolicyPoint::bytes);
    return {static_cast<int>(std::min(cheapest, points.end() - 1) -
                             points.begin())};
  }
  const Cover cover = LeastCover(ItemsOf(kinds), bytes - base_bytes, limits);
  std::vector<int> counts;
  size_t item = 0;
  for (const GroupKind& kind : kinds) {
    counts.push_back(0);
    for (int copy = 0; copy < kind.count; ++copy) {
      counts.back() += cover.take[item++];
    }
  }
  return counts;
}

int PolicyTable::IndexOf(JointProblem::Policies policies) {
  std::vector<Kind> key = {{policies.base_bytes, policies.base_ms, 0}};
  for (const GroupKind& kind : policies.kinds) {
    key.emplace_back(kind.bytes, kind.ms, kind.count);
  }
  for (const PolicyPoint& point : policies.points) {
    key.emplace_back(point.bytes, point.ms, -1);
  }
  const auto [it, is_new] =
      index_.try_emplace(std::move(key), static_cast<int>(policies_.size()));
  if (is_new) policies_.push_back(std::move(policies));
  return it->second;
}

UnitChoices ChoicesOfUnits(const Profile& profile, const ModuleTree& tree,
                           const JointProblemOptions& options) {
  RefuseUnmatched(profile, options.patterns.save, "--save");
  RefuseUnmatched(profile, options.patterns.recompute, "--recompute");
  UnitChoices choices{
      .forest = BuildUnitForest(profile, tree,
                                {.memory = options.memory,
                                 .budget_bytes = options.budget_bytes,
                                 .ac_units = options.ac_units,
                                 .fsdp_units = options.fsdp_units,
                                 .max_units = options.max_units}),
      .groups = std::vector<OperatorGroups>(tree.size())};
  const UnitForest& forest = choices.forest;
  for (int i = 0; i < tree.size(); ++i) {
    if (!forest.may_be_unit[i]) continue;
    const Module& module = profile.modules[tree.node(i).module];
    if (!module.sac) {
      if (module.act_fw_per_module > 0) {
        choices.refused.push_back(
            {i, false, "no operator statistics, so it cannot be an AC unit"});
      }
      continue;
    }
    OperatorGroups groups =
        options.may_skip
            ? graph::GroupOperators(WithoutRandomRules(*module.sac),
                                    options.patterns)
            : graph::GroupOperators(*module.sac, options.patterns);
    if (!groups.contradiction.empty()) {
      choices.refused.push_back(
          {i, true,
           "no policy satisfies all rules, so it cannot be an AC unit: ",
           groups.contradiction});
      continue;
    }
    choices.groups[i] = std::move(groups);
  }
  return choices;
}

BuiltJointProblem BuildJointProblem(const Profile& profile,
                                    const ModuleTree& tree,
                                    const JointProblemOptions& options) {
  UnitChoices choices = ChoicesOfUnits(profile, tree, options);
  UnitForest& forest = choices.forest;
  for (const UnitChoices::Refused& refused : choices.refused) {
    const Module& module = profile.modules[tree.node(refused.node).module];
    forest.by_type.Add(module.fqn, refused.kind, refused.details);
  }
  BuiltJointProblem built_problem;
  built_problem.warnings = forest.Warnings();
  JointProblem& problem = built_problem.problem;
  problem.relaxed = std::move(forest.problem);
  problem.policies_of.assign(tree.size(), -1);
  built_problem.groups.resize(tree.size());

  PolicyTable table;
  for (int i = 0; i < tree.size(); ++i) {
    OperatorGroups& groups = choices.groups[i];
    if (groups.groups.empty()) continue;
    const Module& module = profile.modules[tree.node(i).module];
    const int64_t held_bytes = options.memory.model != MemoryModel::kTorch
                                   ? module.held_per_module
                                   : 0;
    JointProblem::Policies policies = PoliciesOf(module, groups, held_bytes);
    if (policies.MostBytes() <= 0) continue;
    ModuleProblem::Node& node = problem.relaxed.nodes[i];
    node.curve = HullOf(policies);
    node.held_bytes = static_cast<double>(held_bytes);
    problem.policies_of[i] = table.IndexOf(std::move(policies));
    built_problem.groups[i] = std::move(groups);
  }
  problem.policies = table.Take();
  DropUselessLimit(problem.relaxed);
  return built_problem;
}

}  // namespace acplan::problems
