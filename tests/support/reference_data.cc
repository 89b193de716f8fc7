#include "tests/support/reference_data.h"

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

problems::PlannedModule ReadUnit(const std::string& profile, const json& unit) {
  problems::PlannedModule planned;
  planned.fqn = unit.at("fqn");
  planned.discard_ratio = unit.at("discard_ratio");
  planned.memory_budget = 1 - planned.discard_ratio;
  if (!unit.contains("policy")) return planned;
  const std::string policy = unit.at("policy");
  for (const graph::Module& module : BundledProfile(profile).modules) {
    if (module.fqn != planned.fqn) continue;
    for (size_t k = 0; k < policy.size(); ++k) {
      planned.ops.push_back(
          {.index = static_cast<int>(k),
           .name = module.sac->func_names.at(k),
           .decision = graph::SaveOrRecompute(policy[k] == '1')});
    }
  }
  return planned;
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
  const auto found = profiles.find(name);
  if (found != profiles.end()) return found->second;
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
  const json data = ReadTestData("torch_plans.json");
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
  const json data = ReadTestData("torch_plans.json");
  for (const json& entry : data.at("cases")) {
    TorchPlan plan{.profile = entry.at("profile"),
                   .label = entry.at("label"),
                   .budget_bytes = entry.at("budget_bytes"),
                   .predicted_peak = entry.at("predicted_peak"),
                   .recompute_ms = entry.at("recompute_ms"),
                   .measured_peak = entry.at("measured_peak"),
                   .measured_peak_total = entry.at("measured_peak_total"),
                   .units = {}};
    for (const json& unit : entry.at("units")) {
      plan.units.push_back(ReadUnit(plan.profile, unit));
    }
    plans.push_back(std::move(plan));
  }
  return plans;
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
