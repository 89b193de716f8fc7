#include "tests/support/literal_sac_milp.h"

#include <algorithm>
#include <array>
#include <utility>

namespace acplan::test_support {

using graph::Module;
using graph::ModuleTree;
using graph::Profile;
using solver::kInfinity;
using solver::Milp;

namespace {

constexpr double kBigM = 100;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

double GiB(int64_t bytes) { return static_cast<double>(bytes) / kGiB; }

bool IsLeafHere(const Module& module) {
  if (module.is_leaf || module.calls == 0 || !module.torch_fit) return true;
  const graph::TradeoffFit& fit = *module.torch_fit;
  const auto has_value = [](const std::optional<double>& v) {
    return v.has_value();
  };
  return fit.slopes.empty() || !std::ranges::all_of(fit.slopes, has_value) ||
         !std::ranges::all_of(fit.intercepts, has_value) ||
         std::max(fit.sac_memory, module.act_fw_per_module) == 0;
}

class Builder {
 public:
  Builder(const Profile& profile, const ModuleTree& tree)
      : profile_(profile), tree_(tree), n_(tree.size()) {
    milp_.name = "SAC";
    constexpr std::array<const char*, kLiteralVariables> kNames = {
        "y", "r", "d", "a", "m", "rcp", "rct"};
    for (int v = 0; v < kLiteralVariables; ++v) {
      for (int i = 0; i < n_; ++i) {
        milp_.AddColumn({.name = kNames[v] + ("_" + std::to_string(i)),
                         .upper = v == kY || v == kR ? 1 : kInfinity,
                         .cost = v == kRct ? 1.0 : 0.0,
                         .is_integer = v == kY});
      }
    }
    max_m_ = milp_.AddColumn({.name = "max_m"});
  }

  Milp Take() { return std::move(milp_); }

  void AddRestrictions(const std::vector<std::string>& ac_units,
                       const std::vector<std::string>& fsdp_units) {
    for (int i = 0; i < n_; ++i) {
      const std::string& fqn = ModuleOf(i).fqn;
      const bool left_out = !ac_units.empty() &&
                            std::ranges::find(ac_units, fqn) == ac_units.end();
      const bool above_fsdp = std::ranges::any_of(
          fsdp_units,
          [&](const auto& unit) { return graph::IsSubmodule(unit, fqn); });
      if (left_out || above_fsdp || IsLeafHere(ModuleOf(i))) {
        AddRow(0, 0, {{Column(kY, i), 1}});
      }
      for (int j = i + 1; j < n_ && tree_.AdMatrix(i, j); ++j) {
        AddRow(-kInfinity, 1, {{Column(kY, i), 1}, {Column(kY, j), 1}});
      }
    }
  }

  void AddMemory(double budget_bytes, int world_size) {
    const double parameters = GiB(ModuleOf(0).param_per_module);
    for (int i = 0; i < n_; ++i) {
      const Module& module = ModuleOf(i);
      const double internal = GiB(module.act_fw_per_module);
      double sac = 0;
      if (!IsLeafHere(module)) {
        sac = std::max(GiB(module.torch_fit->sac_memory), internal);
      }
      AddRow(0, 0,
             {{Column(kD, i), 1},
              {Column(kR, i), -sac},
              {Column(kY, i), sac - internal}});
      AddRow(0, kInfinity, {{Column(kY, i), 1}, {Column(kR, i), -1}});
      if (!IsLeafHere(module)) {
        AddRow(0, kInfinity,
               {{Column(kR, i), 1}, {Column(kY, i), -(sac - internal) / sac}});
      }
      if (tree_.node(i).fw_post < 0) continue;

      const double activations =
          GiB(module.act_total) + GiB(module.act_grad_per_module);
      Milp::Row total{.lower = activations,
                      .upper = activations,
                      .terms = {{Column(kA, i), 1}}};
      for (int j = 0; j < n_; ++j) {
        const int time = tree_.node(j).fw_post;
        if (0 <= time && time < tree_.node(i).fw_post) {
          total.terms.push_back({Column(kD, j), 1});
        }
      }
      milp_.AddRow(std::move(total));
      const double sharded = (parameters + GiB(module.grad_total)) / world_size;
      AddRow(sharded, sharded, {{Column(kM, i), 1}, {Column(kA, i), -1}});
      AddRow(0, kInfinity, {{max_m_, 1}, {Column(kM, i), -1}});
    }
    AddRow(-kInfinity, budget_bytes / kGiB, {{max_m_, 1}});
  }

  void AddRecomputation() {
    for (int i = 0; i < n_; ++i) {
      const Module& module = ModuleOf(i);
      double runtime = 0;
      if (!IsLeafHere(module)) {
        const graph::TradeoffFit& fit = *module.torch_fit;
        runtime = fit.sac_runtime;
        for (size_t s = 0; s < fit.slopes.size(); ++s) {
          AddRow(*fit.intercepts[s], kInfinity,
                 {{Column(kRcp, i), 1}, {Column(kR, i), -*fit.slopes[s]}});
        }
      }
      AddRow(-kInfinity, 0, {{Column(kRct, i), 1}, {Column(kY, i), -kBigM}});
      AddRow(-kInfinity, 0,
             {{Column(kRct, i), 1}, {Column(kRcp, i), -runtime}});
      AddRow(-kBigM, kInfinity,
             {{Column(kRct, i), 1},
              {Column(kRcp, i), -runtime},
              {Column(kY, i), -kBigM}});
    }
  }

 private:
  const Module& ModuleOf(int i) const {
    return profile_.modules[tree_.node(i).module];
  }
  int Column(LiteralVariable v, int i) const { return v * n_ + i; }
  void AddRow(double lower, double upper, std::vector<Milp::Term> terms) {
    milp_.AddRow({.lower = lower, .upper = upper, .terms = std::move(terms)});
  }

  const Profile& profile_;
  const ModuleTree& tree_;
  int n_;
  Milp milp_;
  int max_m_ = 0;
};

}  // namespace

Milp BuildLiteralSacMilp(const Profile& profile, const ModuleTree& tree,
                         double budget_bytes, int world_size,
                         const std::vector<std::string>& ac_units,
                         const std::vector<std::string>& fsdp_units) {
  Builder builder(profile, tree);
  builder.AddRestrictions(ac_units, fsdp_units);
  builder.AddMemory(budget_bytes, world_size);
  builder.AddRecomputation();
  return builder.Take();
}

}  // namespace acplan::test_support
