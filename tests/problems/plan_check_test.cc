#include "problems/check/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/simulation.h"
#include "problems/planner.h"
#include "tests/problems/enumeration.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using graph::Module;
using graph::Profile;
using test_support::Enough;
using test_support::Repetitions;
using ::testing::HasSubstr;
using ::testing::Optional;

struct GoodPlan {
  Profile profile = test_support::SyntheticGpt(2);
  Plan plan;
  PlanRules rules;

  GoodPlan() {
    Module& mlp = Find("GPT.h.1.mlp");
    mlp.sac = graph::SacStatistics{
        .func_names = {"mm", "view", "gelu", "mm", "rand", "rand", "add_"},
        .runtimes = {2, 0.1, 1, 2, 0.1, 0.1, 0.2},
        .memory = {100'000'000, 5, 200'000'000, 150'000'000, 30'000'000,
                   20'000'000, 40'000'000},
        .view_like_ops = {1},
        .rand_ops = {4, 5},
        .saved_autograd_ops = {},
        .inplace_ops = {{6, 3}},
        .force_store_random = false};
    plan.model = "synthetic_gpt";
    plan.status = PlanStatus::kOptimal;
    plan.modules = {Ratio("GPT.h.0", 0.9), Ratio("GPT.h.1.attn", 0.8)};
    Refresh();
  }

  Module& Find(const std::string& fqn) {
    return *std::ranges::find(profile.modules, fqn, &Module::fqn);
  }
  static PlannedModule Ratio(const std::string& fqn, double ratio) {
    return {.fqn = fqn,
            .discard_ratio = ratio,
            .memory_budget = 1 - ratio,
            .ops = {}};
  }
  // Returns a policy for the module that has statistics: 1 save, 0 recompute.
  PlannedModule Ops(const std::string& policy) {
    const graph::SacStatistics& sac = *Find("GPT.h.1.mlp").sac;
    double total = 0;
    double saved = 0;
    for (size_t k = 0; k < sac.memory.size(); ++k) {
      const auto bytes = static_cast<double>(sac.memory[k]);
      total += bytes;
      if (k < policy.size() && policy[k] == '1') saved += bytes;
    }
    PlannedModule planned_unit = Ratio("GPT.h.1.mlp", 1 - saved / total);
    for (size_t k = 0; k < policy.size(); ++k) {
      planned_unit.ops.push_back(
          {.index = static_cast<int>(k),
           .name = sac.func_names[k],
           .decision = graph::SaveOrRecompute(policy[k] == '1')});
    }
    return planned_unit;
  }
  // Makes the plan's statements about itself true again.
  void Refresh() {
    const PlanEffect effect = ComputeEffect(profile, plan.modules, plan.memory);
    plan.peak_bytes = effect.peak_bytes;
    plan.budget_bytes = effect.peak_bytes;
    plan.recompute_ms = effect.recompute_ms;
  }
  std::optional<std::string> Broken() const {
    return FirstBrokenRule(profile, plan, rules);
  }
};

TEST(FirstBrokenRule, AGoodPlanKeepsAll) {
  GoodPlan good;
  EXPECT_EQ(good.Broken(), std::nullopt);
  good.plan.modules[1] = good.Ops("1010111");
  EXPECT_THAT(good.Broken(), Optional(HasSubstr("not treated as its parent")));
  good.plan.modules[1] = good.Ops("1011111");
  good.Refresh();
  EXPECT_EQ(good.Broken(), std::nullopt);
}

TEST(BrokenOperatorRule, WhatIsSkippedIsNeitherSavedNorRunAgain) {
  GoodPlan good;
  graph::SacStatistics sac = *good.Find("GPT.h.1.mlp").sac;
  const auto broken = [&](const std::string& policy, bool draws_alone = false) {
    return BrokenOperatorRule(
        sac, {.save = {"mm"}, .recompute = {"gelu"}},
        [&](int k) {
          return policy[k] == '-' ? graph::OperatorDecision::kSkip
                                  : graph::SaveOrRecompute(policy[k] == '1');
        },
        draws_alone);
  };
  EXPECT_EQ(broken("1001111"), std::nullopt);
  EXPECT_EQ(broken("----00-"), std::nullopt);
  EXPECT_THAT(broken("---000-"), Optional(HasSubstr("must be saved (--save)")));
  EXPECT_THAT(broken("-1--00-"), Optional(HasSubstr("is view-like")));
  EXPECT_THAT(broken("--1-00-"), Optional(HasSubstr("must be recomputed")));
  EXPECT_THAT(
      broken("----000"),
      Optional(HasSubstr("runs again on the result of a skipped operator")));
  EXPECT_THAT(broken("---100-"),
              Optional(HasSubstr("not treated as its parent")));
  // On a trace an operator that read its parent's result may be kept alone.
  EXPECT_THAT(broken("----001"),
              Optional(HasSubstr("not treated as its parent")));
  EXPECT_EQ(broken("----001", true), std::nullopt);
  EXPECT_THAT(broken("---0001", true),
              Optional(HasSubstr("not treated as its parent")));
  // A write to something from outside must not be made twice.
  sac.inplace_ops = {{6, 6}};
  EXPECT_THAT(broken("----000"), Optional(HasSubstr("must be saved")));
  EXPECT_EQ(broken("----00-"), std::nullopt);
  EXPECT_THAT(broken("----01-"),
              Optional(HasSubstr("not treated as the other random")));
  EXPECT_EQ(broken("----01-", true), std::nullopt);
  sac.force_store_random = true;
  EXPECT_THAT(broken("----01-"),
              Optional(HasSubstr("is random and must be saved here")));
  EXPECT_EQ(broken("----01-", true), std::nullopt);
}

struct Breakage {
  std::string message;
  std::function<void(GoodPlan&)> mutate;
};

TEST(FirstBrokenRule, NamesEachRule) {
  const std::vector<Breakage> table = {
      {"GPT.ln_f is a leaf",
       [](GoodPlan& p) { p.plan.modules.push_back(p.Ratio("GPT.ln_f", 1)); }},
      {"GPT.h.0 is never called",
       [](GoodPlan& p) { p.Find("GPT.h.0").calls = 0; }},
      {"GPT.h.1.mlp: operator 2 'gelu' is skipped, an effect that is known on "
       "traces only",
       [](GoodPlan& p) {
         p.plan.modules[1] = p.Ops("1011111");
         p.plan.modules[1].ops[2].decision = graph::OperatorDecision::kSkip;
       }},
      {"GPT.h.1.mlp: operator 3 'mm' keeps some of its results, an effect that "
       "is known on traces only",
       [](GoodPlan& p) {
         p.plan.modules[1] = p.Ops("1011111");
         p.plan.modules[1].ops[3].results = std::vector<int32_t>{};
       }},
      {"GPT.h.0.mlp lies inside GPT.h.0",
       [](GoodPlan& p) {
         p.plan.modules.push_back(p.Ratio("GPT.h.0.mlp", 0.9));
       }},
      {"GPT.h.1.attn is not among the given AC units",
       [](GoodPlan& p) {
         p.rules.ac_units = {"GPT.h.0", "GPT.h.1"};
       }},
      {"GPT.h.0 contains the FSDP unit GPT.h.0.mlp",
       [](GoodPlan& p) { p.rules.fsdp_units = {"GPT.h.0.mlp"}; }},
      {"2 AC units, more than the 1 allowed",
       [](GoodPlan& p) { p.rules.max_units = 1; }},
      {"GPT.h.0: discard ratio 0.1 is below",
       [](GoodPlan& p) { p.plan.modules[0].discard_ratio = 0.1; }},
      {"GPT.h.0: discards",
       [](GoodPlan& p) { p.plan.modules[0].discard_ratio = 1.1; }},
      {"GPT.h.1.mlp: discards",
       [](GoodPlan& p) {
         p.Find("GPT.h.1.mlp").sac->force_store_random = true;
         p.plan.memory.model = MemoryModel::kSnapshot;
         p.plan.modules[1] = p.Ratio("GPT.h.1.mlp", 1);
       }},
      {"GPT.h.0 has no operator decisions",
       [](GoodPlan& p) { p.plan.granularity = "operator"; }},
      {"over the budget at", [](GoodPlan& p) { p.plan.budget_bytes -= 1; }},
      {"over the budget at", [](GoodPlan& p) { p.plan.reserve_bytes = 1; }},
      {"the plan says its peak is",
       [](GoodPlan& p) { p.plan.peak_bytes -= 1000; }},
      {"the plan says it recomputes",
       [](GoodPlan& p) { p.plan.recompute_ms *= 0.99; }},
      {"the plan says its gap is 0.5; it is 0",
       [](GoodPlan& p) {
         p.plan.bound_ms = p.plan.recompute_ms;
         p.plan.gap = 0.5;
       }},
      {"the plan says it is optimal; its gap is 0.5",
       [](GoodPlan& p) { p.plan.gap = 0.5; }},
      {"the plan says that any schedule recomputes at least",
       [](GoodPlan& p) {
         p.plan.any_schedule = AnySchedule{.bound_ms = p.plan.recompute_ms * 2};
       }},
      {"the plan says its distance from any schedule is 0.25; it is 0.5",
       [](GoodPlan& p) {
         p.plan.any_schedule =
             AnySchedule{.bound_ms = p.plan.recompute_ms / 2, .distance = 0.25};
       }},
      {"the plan says its baseline's peak module is GPT.h.0",
       [](GoodPlan& p) {
         p.plan.baseline = {
             .peak_bytes =
                 ComputeEffect(p.profile, {}, p.plan.memory).peak_bytes,
             .peak_module = "GPT.h.0"};
       }},
      {"GPT.h.0: the plan says 5 bytes are discarded",
       [](GoodPlan& p) { p.plan.modules[0].discarded_bytes = 5; }},
      {"operator 1 'view' is view-like",
       [](GoodPlan& p) { p.plan.modules[1] = p.Ops("1111111"); }},
      {"operator 5 'rand' is random and not treated as the other",
       [](GoodPlan& p) { p.plan.modules[1] = p.Ops("1011101"); }},
      {"operator 4 'rand' is random and must be saved",
       [](GoodPlan& p) {
         p.Find("GPT.h.1.mlp").sac->force_store_random = true;
         p.plan.modules[1] = p.Ops("1011001");
       }},
      {"operator 6 'add_' is in place and not treated as its parent",
       [](GoodPlan& p) { p.plan.modules[1] = p.Ops("1011110"); }},
      {"operator 6 'add_' is in place and must be saved",
       [](GoodPlan& p) {
         p.Find("GPT.h.1.mlp").sac->inplace_ops = {{6, 6}};
         p.plan.modules[1] = p.Ops("1011110");
       }},
      {"GPT.h.1.mlp: operator 0 'mm' must be saved (--save)",
       [](GoodPlan& p) {
         p.rules.patterns.save = {"m?"};
         p.plan.modules[1] = p.Ops("0011111");
       }},
      {"GPT.h.1.mlp: operator 2 'gelu' must be recomputed (--recompute)",
       [](GoodPlan& p) {
         p.rules.patterns.recompute = {"gelu"};
         p.plan.modules[1] = p.Ops("1011111");
       }},
      {"GPT.h.1.mlp: the plan says its discard ratio is 0.5; its operators "
       "make it",
       [](GoodPlan& p) {
         p.plan.modules[1] = p.Ops("1011111");
         p.plan.modules[1].discard_ratio = 0.5;
         p.plan.modules[1].memory_budget = 0.5;
         p.Refresh();
       }},
  };
  for (const Breakage& breakage : table) {
    SCOPED_TRACE(breakage.message);
    GoodPlan plan;
    breakage.mutate(plan);
    const std::optional<std::string> broken = plan.Broken();
    EXPECT_THAT(broken, Optional(HasSubstr(breakage.message)));
    EXPECT_THAT(broken.value_or(""), ::testing::Not(HasSubstr("\n")));
  }
}

TEST(FirstBrokenRule, WhatIsFreeHasNoGap) {
  GoodPlan good;
  good.plan.modules.clear();
  good.Refresh();
  ASSERT_EQ(good.plan.recompute_ms, 0);
  good.plan.bound_ms = 0;
  good.plan.gap = 0;
  EXPECT_EQ(good.Broken(), std::nullopt);
  good.plan.gap = 1;
  EXPECT_THAT(good.Broken(), Optional(HasSubstr("its gap is 1; it is 0")));
}

TEST(FirstBrokenRule, BytesOfASimulatedStepAreExact) {
  std::mt19937 random(1);
  const graph::Trace trace = test_support::RandomStep(random);
  const graph::Profile profile = graph::Aggregate(trace);
  Plan sound;
  sound.memory.model = MemoryModel::kTrace;
  sound.peak_bytes = graph::Simulate(trace, {}).peak_bytes;
  sound.budget_bytes = sound.peak_bytes;
  sound.baseline.peak_bytes = sound.peak_bytes;
  EXPECT_EQ(FirstBrokenRule(profile, sound, {}, &trace), std::nullopt);
  Plan false_peak = sound;
  false_peak.peak_bytes -= 1;
  EXPECT_THAT(FirstBrokenRule(profile, false_peak, {}, &trace),
              Optional(HasSubstr("the plan says its peak is")));
  Plan false_baseline = sound;
  false_baseline.baseline.peak_bytes += 1;
  EXPECT_THAT(FirstBrokenRule(profile, false_baseline, {}, &trace),
              Optional(HasSubstr("baseline's peak in bytes")));
}

// Returns a policy of the module that has statistics, with true sums.
StatedPolicy Stated(const graph::SacStatistics& sac, std::string_view saved,
                    double memory_budget) {
  StatedPolicy policy{.save = {}, .memory_budget = memory_budget};
  int64_t total = 0;
  for (size_t k = 0; k < saved.size(); ++k) {
    const bool save = saved[k] == '1';
    policy.save.push_back(save ? 1 : 0);
    total += sac.memory[k];
    if (save) policy.saved_bytes += sac.memory[k];
    (save ? policy.saved_ms : policy.recompute_ms) += sac.runtimes[k];
  }
  policy.capacity_bytes = static_cast<int64_t>(
      std::ceil(memory_budget * static_cast<double>(total)));
  return policy;
}

TEST(FirstBrokenRule, OfAPolicyNamesEachRule) {
  GoodPlan good;
  graph::SacStatistics sac = *good.Find("GPT.h.1.mlp").sac;
  const auto broken = [&](const StatedPolicy& policy,
                          const graph::OperatorPatterns& patterns = {}) {
    return FirstBrokenRule(sac, policy, patterns).value_or("none");
  };
  const StatedPolicy sound = Stated(sac, "1011111", 1);
  EXPECT_EQ(broken(sound), "none");
  EXPECT_EQ(broken(Stated(sac, "1000000", 0.185185184)), "none");
  EXPECT_EQ(broken(Stated(sac, "0000000", 0)), "none");

  EXPECT_EQ(broken(Stated(sac, "101", 1)), "3 decisions for 7 operators");
  EXPECT_THAT(broken(Stated(sac, "1111111", 1)), HasSubstr("view-like"));
  EXPECT_THAT(broken(Stated(sac, "1011101", 1)), HasSubstr("random"));
  EXPECT_THAT(broken(Stated(sac, "1011110", 1)), HasSubstr("its parent"));
  EXPECT_THAT(broken(sound, {.save = {}, .recompute = {"m*"}}),
              HasSubstr("operator 0 'mm' must be recomputed (--recompute)"));
  EXPECT_THAT(
      broken(Stated(sac, "1000000", 1), {.save = {"gelu"}, .recompute = {}}),
      HasSubstr("operator 2 'gelu' must be saved (--save)"));
  EXPECT_THAT(broken(Stated(sac, "1000000", 0.185)),
              HasSubstr("more than the capacity"));
  StatedPolicy stated = sound;
  stated.capacity_bytes -= 1;
  EXPECT_THAT(broken(stated), HasSubstr("the policy says its capacity is"));
  stated = sound;
  stated.saved_bytes -= 1;
  EXPECT_THAT(broken(stated), HasSubstr("the policy says it saves"));
  stated = sound;
  stated.saved_ms += 0.1;
  EXPECT_THAT(broken(stated), HasSubstr("the policy says it saves"));
  stated = sound;
  stated.recompute_ms = 0;
  EXPECT_THAT(broken(stated), HasSubstr("the policy says it recomputes"));
  sac.force_store_random = true;
  EXPECT_THAT(broken(Stated(sac, "1000000", 1)), HasSubstr("must be saved"));
}

TEST(ComputeEffect, RefusesPlansForOtherModels) {
  const std::vector<Breakage> table = {
      {"no module 'GPT.h.7'",
       [](GoodPlan& p) { p.plan.modules[0].fqn = "GPT.h.7"; }},
      {"no trade-off fit",
       [](GoodPlan& p) { p.Find("GPT.h.0").torch_fit.reset(); }},
      {"is null",
       [](GoodPlan& p) {
         p.Find("GPT.h.0").torch_fit->slopes[0] = std::nullopt;
       }},
      {"no operators",
       [](GoodPlan& p) {
         p.plan.modules[1] = p.Ops("1011111");
         p.Find("GPT.h.1.mlp").sac.reset();
       }},
      {"3 operators in the plan, 7 in the profile",
       [](GoodPlan& p) { p.plan.modules[1] = p.Ops("101"); }},
      {"operator 0 is 0 'conv' in the plan, 'mm' in the profile",
       [](GoodPlan& p) {
         p.plan.modules[1] = p.Ops("1011111");
         p.plan.modules[1].ops[0].name = "conv";
       }},
      {"no `snap.peak_fw`",
       [](GoodPlan& p) {
         p.plan.memory.model = MemoryModel::kSnapshot;
         p.Find("GPT.ln_f").snap.reset();
       }},
  };
  for (const Breakage& breakage : table) {
    SCOPED_TRACE(breakage.message);
    GoodPlan p;
    breakage.mutate(p);
    try {
      ComputeEffect(p.profile, p.plan.modules, p.plan.memory);
      ADD_FAILURE() << "no error";
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(breakage.message));
    }
  }
}

TEST(ComputeEffect, CountsWhatOperatorsSaveAndRecompute) {
  GoodPlan p;
  p.plan.modules = {p.Ops("0001001")};
  const PlanEffect effect =
      ComputeEffect(p.profile, p.plan.modules, p.plan.memory);
  EXPECT_DOUBLE_EQ(effect.recompute_ms, 2 + 0.1 + 1 + 0.1 + 0.1);
  // All of the module's activations fit into the sum of its operators' memory.
  const auto internal =
      static_cast<double>(p.Find("GPT.h.1.mlp").act_fw_per_module);
  EXPECT_DOUBLE_EQ(effect.records.back().discarded_bytes,
                   internal - 190'000'000);
}

TEST(ComputeEffect, SplitsThePeak) {
  GoodPlan p;
  for (const MemoryModel model :
       {MemoryModel::kTorch, MemoryModel::kSnapshot}) {
    const PlanEffect effect =
        ComputeEffect(p.profile, p.plan.modules, {.model = model});
    EXPECT_NEAR(effect.persistent_bytes + effect.activation_bytes,
                static_cast<double>(effect.peak_bytes), 1);
    EXPECT_GE(effect.persistent_bytes,
              static_cast<double>(*p.profile.measured.param_bytes));
  }
}

// Plans of random units with random ratios, nested or not.
TEST(ComputeEffect, AgreesWithTheOracleOnRandomPlans) {
  int plans = 0;
  for (unsigned seed = 0; seed < Repetitions(2000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Profile profile = test_support::RandomProfile(seed);
    std::mt19937 random(seed);
    const MemoryOptions memory = {.model = DefaultMemoryModel(profile),
                                  .world_size = int64_t{1} << random() % 4,
                                  .without_states = random() % 2 == 0};
    std::vector<PlannedModule> modules;
    for (const Module& module : profile.modules) {
      const bool has_fit =
          module.calls > 0 && !module.is_leaf && module.torch_fit &&
          !module.torch_fit->slopes.empty() && module.torch_fit->slopes[0];
      if (!has_fit || random() % 2 == 0) continue;
      modules.push_back(GoodPlan::Ratio(
          module.fqn, static_cast<double>(random() % 1001) / 1000));
    }
    const PlanEffect effect = ComputeEffect(profile, modules, memory);
    const double peak = PeakOf(profile, modules, memory);
    EXPECT_NEAR(static_cast<double>(effect.peak_bytes), std::max(0.0, peak),
                1.01);
    EXPECT_NEAR(effect.recompute_ms, MsOf(profile, modules),
                1e-9 * std::max(1.0, effect.recompute_ms));
    plans += !modules.empty();
  }
  EXPECT_GT(plans, Enough(700));
}

}  // namespace
}  // namespace acplan::problems
