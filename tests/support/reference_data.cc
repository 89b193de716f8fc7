#include "tests/support/reference_data.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "graph/base/file_io.h"
#include "graph/base/json_fields.h"

namespace acplan::test_support {

using nlohmann::json;

namespace {

json ReadTestData(const std::string& name) {
  const std::filesystem::path path =
      std::filesystem::path(ACPLAN_TEST_DATA_DIR) / name;
  return graph::ParseJson(graph::ReadFile(path), path.string());
}

problems::PlannedModule ReadUnit(const json& unit) {
  problems::PlannedModule planned_unit;
  planned_unit.fqn = unit.at("fqn");
  planned_unit.discard_ratio = unit.at("discard_ratio");
  planned_unit.memory_budget = 1 - planned_unit.discard_ratio;
  if (!unit.contains("policy")) return planned_unit;
  const std::string policy = unit.at("policy");
  for (size_t k = 0; k < policy.size(); ++k) {
    planned_unit.ops.push_back(
        {.index = static_cast<int>(k),
         .name = {},
         .decision = graph::SaveOrRecompute(policy[k] == '1')});
  }
  return planned_unit;
}

std::vector<KnownOptimum> KnownOptimaWith(const std::string& optimum) {
  std::vector<KnownOptimum> optima;
  const json data = ReadTestData("known_optima.json");
  for (const json& entry : data.at("cases")) {
    if (!entry.contains(optimum)) continue;
    optima.push_back(
        {.profile = entry.at("profile"),
         .budget_bytes = entry.at("budget_bytes"),
         .module_recompute_ms = entry.value("module_recompute_ms", 0.0),
         .joint_recompute_ms = entry.value("joint_recompute_ms", 0.0)});
  }
  return optima;
}

}  // namespace

std::filesystem::path ProfilePath(const std::string& name) {
  return std::filesystem::path(ACPLAN_DATA_DIR) / "profiles" /
         (name + ".json.gz");
}

const graph::Profile& BundledProfile(const std::string& name) {
  static std::map<std::string, graph::Profile> profiles;
  const auto place = profiles.find(name);
  if (place != profiles.end()) return place->second;
  return profiles.emplace(name, graph::ReadProfile(ProfilePath(name)))
      .first->second;
}

std::vector<KnownOptimum> KnownModuleOptima() {
  return KnownOptimaWith("module_recompute_ms");
}

std::vector<KnownOptimum> KnownJointOptima() {
  return KnownOptimaWith("joint_recompute_ms");
}

std::vector<TorchBaseline> TorchBaselines() {
  std::vector<TorchBaseline> baselines;
  const json data = ReadTestData("torch_plans.json.gz");
  for (const json& entry : data.at("models")) {
    baselines.push_back(
        {.profile = entry.at("profile"),
         .predicted = entry.at("baseline_predicted"),
         .measured_total = entry.at("baseline_measured_total")});
  }
  return baselines;
}

std::vector<TorchPlan> TorchPlans() {
  std::vector<TorchPlan> plans;
  const json data = ReadTestData("torch_plans.json.gz");
  for (const json& entry : data.at("cases")) {
    TorchPlan plan{.profile = entry.at("profile"),
                   .label = entry.at("label"),
                   .budget_bytes = entry.at("budget_bytes"),
                   .predicted_peak = entry.at("predicted_peak"),
                   .recompute_ms = entry.at("recompute_ms"),
                   .measured_peak = entry.at("measured_peak"),
                   .measured_peak_total = entry.at("measured_peak_total"),
                   .unnamed_units = {}};
    for (const json& unit : entry.at("units")) {
      plan.unnamed_units.push_back(ReadUnit(unit));
    }
    plans.push_back(std::move(plan));
  }
  return plans;
}

std::vector<problems::PlannedModule> UnitsOf(const TorchPlan& plan) {
  std::vector<problems::PlannedModule> units = plan.unnamed_units;
  const graph::Profile& profile = BundledProfile(plan.profile);
  for (problems::PlannedModule& unit : units) {
    if (unit.ops.empty()) continue;
    const auto module =
        std::ranges::find(profile.modules, unit.fqn, &graph::Module::fqn);
    for (auto& op : unit.ops) op.name = module->sac->func_names.at(op.index);
  }
  return units;
}

std::ostream& operator<<(std::ostream& out, const KnownOptimum& optimum) {
  return out << optimum.profile << " at " << optimum.budget_bytes;
}

std::ostream& operator<<(std::ostream& out, const TorchBaseline& baseline) {
  return out << baseline.profile;
}

std::ostream& operator<<(std::ostream& out, const TorchPlan& plan) {
  return out << plan.profile << " " << plan.label;
}

}  // namespace acplan::test_support
