#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "problems/budget_frontier.h"
#include "problems/check/plan_effect.h"
#include "problems/check/plan_rules.h"
#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "tests/support/instances.h"
#include "tests/support/synthetic_profile.h"

// Relations between the answers to questions about profiles that belong
// together, as in metamorphic_test.cc for steps: at both granularities, with
// the memory models, trade-offs and engines that a profile allows. instances.h
// says how to go through more than CI does.

namespace acplan::problems {
namespace {

using graph::Module;
using graph::Profile;
using test_support::End;
using test_support::First;
using test_support::Instances;
using test_support::LimitsOfInstances;

solver::SearchLimits ProfileLimits() { return LimitsOfInstances(100'000); }

// Returns random options of a question about a profile.
PlanOptions ProfileOptionsByChance(const Profile& profile,
                                   std::mt19937& random) {
  const auto one_in = [&](unsigned count) { return random() % count == 0; };
  PlanOptions options;
  if (!one_in(3)) options.memory.model = DefaultMemoryModel(profile);
  options.memory.world_size = int64_t{1} << random() % 4;
  if (one_in(5)) options.memory.world_size = 3;
  options.memory.without_states =
      options.memory.model == MemoryModel::kSnapshot && one_in(3);
  if (one_in(2)) {
    options.granularity = Granularity::kModule;
    if (one_in(2)) options.tradeoff = Tradeoff::kProfile;
  }
  if (one_in(3)) options.max_units = static_cast<int>(random() % 4);
  return options;
}

// A question about a profile. It cannot be copied: the problem refers to it.
struct ProfileCase {
  ProfileCase(Profile source, const PlanOptions& options)
      : profile(std::move(source)),
        tree(profile),
        problem(BuildPlanningProblem(profile, tree, options)) {}
  ProfileCase(const ProfileCase&) = delete;
  ProfileCase& operator=(const ProfileCase&) = delete;

  Plan For(int64_t budget) const {
    return PlanFor(problem, budget, ProfileLimits()).plan;
  }

  const Profile profile;
  const graph::ModuleTree tree;
  const PlanningProblem problem;
};

// Returns nothing if no module of the profile may be a unit, or if an option is
// incompatible with it.
std::unique_ptr<const ProfileCase> Ask(Profile profile,
                                       const PlanOptions& options) {
  try {
    return std::make_unique<const ProfileCase>(std::move(profile), options);
  } catch (const InputError&) {
    return nullptr;
  }
}

struct QuestionCase {
  explicit QuestionCase(unsigned seed) : random(seed) {
    const int operators = random() % 4 == 0 ? 0 : 6;
    profile = test_support::RandomProfile(
        seed, {.most_modules = 20, .most_operators = operators});
    options = ProfileOptionsByChance(profile, random);
    question = Ask(profile, options);
  }

  std::mt19937 random;
  Profile profile;
  PlanOptions options;
  std::unique_ptr<const ProfileCase> question;
};

// Tests all cases that there are, and asserts that most are.
template <typename Test>
void ForEachProfileCase(Test test) {
  int cases = 0;
  for (int k = First(); k < End() && !testing::Test::HasFailure(); ++k) {
    SCOPED_TRACE(k);
    QuestionCase c(k);
    if (!c.question) continue;
    ++cases;
    test(c);
  }
  EXPECT_GT(2 * cases, Instances());
}

// Returns budgets from the least one to the bytes that the model needs without
// a plan.
std::vector<int64_t> ProfileBudgets(QuestionCase& c) {
  const int64_t least =
      LeastPlan(c.question->problem, ProfileLimits()).budget.bytes;
  const int64_t most = c.question->problem.unplanned_peak_bytes;
  std::vector<int64_t> budgets = {least, std::max(least, most)};
  for (int k = 0; k < 2; ++k) {
    budgets.push_back(
        least +
        static_cast<int64_t>(c.random() % std::max<int64_t>(1, most - least)));
  }
  std::erase_if(budgets, [](int64_t budget) { return budget <= 0; });
  std::ranges::sort(budgets);
  const auto repeated = std::ranges::unique(budgets);
  budgets.erase(repeated.begin(), repeated.end());
  return budgets;
}

bool IsProfilePlanProven(const Plan& plan) {
  return plan.status == PlanStatus::kOptimal ||
         plan.status == PlanStatus::kInfeasible;
}

// CBC's optimum is one within its tolerances.
double Rounding(const Plan& plan) {
  return (plan.solver.name == "cbc" ? 1e-5 : 1e-8) * (1 + plan.recompute_ms);
}

// Compares two answers to the same question, where the other's milliseconds are
// `times` as long.
void ExpectTheSameOfProfile(const Plan& one, const Plan& other,
                            double times = 1) {
  const double rounding = Rounding(other) + times * Rounding(one);
  if (!IsProfilePlanProven(one) || !IsProfilePlanProven(other)) {
    // A bound holds for every plan, no matter which search found it.
    if (!one.HasPlan() || !other.HasPlan()) return;
    EXPECT_LE(one.bound_ms * times, other.recompute_ms + rounding);
    EXPECT_LE(other.bound_ms, one.recompute_ms * times + rounding);
    return;
  }
  EXPECT_EQ(one.status, other.status);
  EXPECT_NEAR(one.recompute_ms * times, other.recompute_ms, rounding);
}

TEST(ProfileMetamorphic, MoreMemoryIsNeverWorse) {
  ForEachProfileCase([](QuestionCase& c) {
    std::optional<Plan> last;
    for (const int64_t budget : ProfileBudgets(c)) {
      Plan plan = c.question->For(budget);
      if (last) {
        EXPECT_NE(plan.status, PlanStatus::kInfeasible);
        EXPECT_LE(plan.bound_ms, last->recompute_ms + Rounding(*last));
        if (IsProfilePlanProven(plan)) {
          EXPECT_LE(plan.recompute_ms, last->recompute_ms + Rounding(*last));
        }
      }
      if (plan.HasPlan()) last = std::move(plan);
    }
    EXPECT_TRUE(last);
  });
}

TEST(ProfileMetamorphic, MoreUnitsAreNeverWorse) {
  ForEachProfileCase([](QuestionCase& c) {
    const std::vector<int64_t> budgets = ProfileBudgets(c);
    std::vector<std::optional<Plan>> last(budgets.size());
    for (const std::optional<int> most :
         {std::optional(0), std::optional(1), std::optional(2),
          std::optional(3), std::optional<int>()}) {
      PlanOptions options = c.options;
      options.max_units = most;
      const auto question = Ask(c.profile, options);
      ASSERT_TRUE(question);
      for (size_t i = 0; i < budgets.size(); ++i) {
        Plan plan = question->For(budgets[i]);
        if (most) {
          EXPECT_LE(std::ssize(plan.modules), *most);
        }
        if (last[i]) {
          EXPECT_LE(plan.bound_ms, last[i]->recompute_ms + Rounding(*last[i]));
          EXPECT_NE(plan.status, PlanStatus::kInfeasible);
        }
        if (plan.HasPlan()) last[i] = std::move(plan);
      }
    }
  });
}

TEST(ProfileMetamorphic, NothingFitsBelowTheLeast) {
  ForEachProfileCase([](QuestionCase& c) {
    const MinimumBudget least =
        LeastPlan(c.question->problem, ProfileLimits()).budget;
    ASSERT_LE(least.bound_bytes, least.bytes);
    if (least.bytes <= 1) return;
    EXPECT_TRUE(c.question->For(least.bytes).HasPlan());
    if (!least.proven) return;
    const Plan below = c.question->For(least.bytes - 1);
    EXPECT_FALSE(below.HasPlan());
    if (below.status != PlanStatus::kInfeasible) return;
    EXPECT_EQ(below.minimum_budget_bytes, least.bytes);
  });
}

Profile ScaledProfile(Profile profile, int64_t bytes, double ms) {
  const auto scale = [&](auto& value) { value *= bytes; };
  const auto scale_all = [&](auto& values) {
    for (auto& value : values) scale(value);
  };
  const auto scale_any = [&](std::optional<int64_t>& value) {
    if (value) scale(*value);
  };
  graph::Measured& measured = profile.measured;
  for (std::optional<int64_t>* value :
       {&measured.peak_bytes, &measured.opt_step_peak_bytes,
        &measured.param_bytes, &measured.grad_bytes, &measured.optimizer_bytes,
        &measured.buffer_bytes, &measured.input_bytes}) {
    scale_any(*value);
  }
  if (measured.opt_step_peak_categories) {
    scale_all(*measured.opt_step_peak_categories);
  }
  for (Module& module : profile.modules) {
    for (int64_t* value :
         {&module.param_per_module, &module.grad_per_module, &module.grad_total,
          &module.act_fw_per_module, &module.act_bw_per_module,
          &module.act_grad_per_module, &module.act_total,
          &module.input_per_module, &module.output_per_module,
          &module.buffer_per_module, &module.held_per_module}) {
      scale(*value);
    }
    module.fw_runtime_per_module *= ms;
    module.bw_runtime_per_module *= ms;
    if (module.snap) {
      for (std::optional<graph::MemorySnapshot>* at :
           {&module.snap->pre_fw, &module.snap->post_fw, &module.snap->peak_fw,
            &module.snap->pre_bw, &module.snap->post_bw,
            &module.snap->peak_bw}) {
        if (*at) scale_all(**at);
      }
    }
    if (module.sac) {
      scale_all(module.sac->memory);
      for (double& runtime : module.sac->runtimes) runtime *= ms;
    }
    if (module.torch_fit) {
      scale(module.torch_fit->sac_memory);
      module.torch_fit->sac_runtime *= ms;
    }
  }
  return profile;
}

TEST(ProfileMetamorphic, UnitsOfBytesAndTimesDoNotMatter) {
  ForEachProfileCase([](QuestionCase& c) {
    const int64_t bytes = 1 + static_cast<int64_t>(c.random() % 100);
    const double ms = c.random() % 2 == 0 ? 1. / 1024 : 3;
    const auto scaled = Ask(ScaledProfile(c.profile, bytes, ms), c.options);
    ASSERT_TRUE(scaled);
    for (const int64_t budget : ProfileBudgets(c)) {
      ExpectTheSameOfProfile(c.question->For(budget),
                             scaled->For(budget * bytes), ms);
    }
  });
}

// Renames modules and reorders them in the file: the orders of the profile say
// when each runs.
Profile RenamedProfile(Profile profile, std::mt19937& random) {
  const auto rename = [](std::string& fqn) {
    std::string renamed = "Q";
    for (const char letter : fqn) {
      renamed += letter;
      if (letter == '.') renamed += 'z';
    }
    fqn = renamed;
  };
  std::ranges::shuffle(profile.modules, random);
  for (Module& module : profile.modules) rename(module.fqn);
  graph::ModuleOrders& order = profile.order;
  for (std::vector<std::string>* names :
       {&order.fw_pre, &order.bw_pre, &order.fw_post, &order.bw_post}) {
    std::ranges::for_each(*names, rename);
  }
  return profile;
}

TEST(ProfileMetamorphic, NamesAndOrdersDoNotMatter) {
  ForEachProfileCase([](QuestionCase& c) {
    const Profile renamed = graph::ParseProfile(
        graph::ProfileToJson(RenamedProfile(c.profile, c.random)), "renamed");
    const auto others = Ask(renamed, c.options);
    ASSERT_TRUE(others);
    EXPECT_EQ(c.question->problem.unplanned_peak_bytes,
              others->problem.unplanned_peak_bytes);
    for (const int64_t budget : ProfileBudgets(c)) {
      ExpectTheSameOfProfile(c.question->For(budget), others->For(budget));
    }
  });
}

PlanRules RulesOf(const PlanOptions& options) {
  PlanRules rules;
  rules.max_units = options.max_units;
  return rules;
}

TEST(ProfileMetamorphic, PlansAreWhatIsSaidOfThem) {
  ForEachProfileCase([](QuestionCase& c) {
    for (const int64_t budget : ProfileBudgets(c)) {
      const Plan plan = c.question->For(budget);
      if (!plan.HasPlan()) continue;
      const Plan read = ParsePlan(PlanToJson(plan), "plan");
      EXPECT_EQ(FirstBrokenRule(c.profile, read, RulesOf(c.options)),
                std::nullopt);
      const PlanEffect effect =
          ComputeEffect(c.profile, read.modules, c.options.memory,
                        ToString(c.options.tradeoff));
      EXPECT_EQ(effect.peak_bytes, read.peak_bytes);
      EXPECT_LE(effect.peak_bytes, budget);
      EXPECT_NEAR(effect.recompute_ms, read.recompute_ms,
                  1e-6 * (1 + read.recompute_ms));
    }
  });
}

TEST(ProfileMetamorphic, FrontiersAreOfPlans) {
  ForEachProfileCase([](QuestionCase& c) {
    const std::vector<int64_t> budgets = ProfileBudgets(c);
    const std::vector<Plan> frontier =
        PlanFrontier(c.question->problem, budgets, ProfileLimits());
    ASSERT_EQ(frontier.size(), budgets.size());
    for (size_t k = 0; k < frontier.size(); ++k) {
      ExpectTheSameOfProfile(frontier[k], c.question->For(budgets[k]));
      if (k == 0 || !frontier[k - 1].HasPlan()) continue;
      EXPECT_LE(frontier[k].recompute_ms,
                frontier[k - 1].recompute_ms + Rounding(frontier[k - 1]));
    }
  });
}

bool IsInside(const std::string& fqn, const std::string& outer) {
  return fqn.starts_with(outer + ".");
}

// Returns a unit with random operators saved, within the rules, or with a
// random share of the bytes.
std::optional<PlannedModule> ProfileUnitByChance(const Module& module,
                                                 const PlanOptions& options,
                                                 std::mt19937& random) {
  PlannedModule unit;
  unit.fqn = module.fqn;
  const double share = static_cast<double>(random() % 1001) / 1000;
  if (options.granularity == Granularity::kModule) {
    if (options.tradeoff == Tradeoff::kProfile ? !module.torch_fit
                                               : !module.sac) {
      return std::nullopt;
    }
    unit.discard_ratio = share;
    unit.memory_budget = 1 - share;
    return unit;
  }
  if (!module.sac) return std::nullopt;
  const graph::OperatorGroups groups = graph::GroupOperators(*module.sac);
  if (!groups.contradiction.empty()) return std::nullopt;
  std::vector<char> saves;
  for (const graph::OperatorGroup& group : groups.groups) {
    saves.push_back(group.rule == graph::GroupRule::kSave ||
                    (group.rule == graph::GroupRule::kFree &&
                     static_cast<double>(random() % 1000) < 1000 * share));
  }
  double saved_bytes = 0, all_bytes = 0;
  for (size_t op = 0; op < groups.group_of.size(); ++op) {
    const bool is_saved = saves[IndexOf(groups.group_of[op])] != 0;
    unit.ops.push_back({.index = static_cast<int>(op),
                        .name = module.sac->func_names[op],
                        .decision = graph::SaveOrRecompute(is_saved)});
    all_bytes += static_cast<double>(module.sac->memory[op]);
    if (is_saved) saved_bytes += static_cast<double>(module.sac->memory[op]);
  }
  unit.memory_budget = all_bytes > 0 ? saved_bytes / all_bytes : 0;
  unit.discard_ratio = 1 - unit.memory_budget;
  return unit;
}

std::vector<PlannedModule> UnitsByChance(QuestionCase& c) {
  std::vector<Module> modules = c.profile.modules;
  std::ranges::shuffle(modules, c.random);
  std::vector<PlannedModule> units;
  for (const Module& module : modules) {
    const bool is_free =
        std::ranges::none_of(units, [&](const PlannedModule& unit) {
          return IsInside(module.fqn, unit.fqn) ||
                 IsInside(unit.fqn, module.fqn);
        });
    if (!is_free || c.random() % 2 == 0) continue;
    std::optional<PlannedModule> unit =
        ProfileUnitByChance(module, c.options, c.random);
    if (unit) units.push_back(*std::move(unit));
  }
  // In forward pre-order, as in plans.
  const std::vector<std::string>& order = c.profile.order.fw_pre;
  std::ranges::sort(units, {}, [&](const PlannedModule& unit) {
    return std::ranges::find(order, unit.fqn) - order.begin();
  });
  return units;
}

// Compares random legal plans with the answers. Returns how often one fitted a
// budget.
int CompareWithPlansByChance(QuestionCase& c) {
  int fitting = 0;
  std::vector<Plan> plans;
  for (const int64_t budget : ProfileBudgets(c)) {
    plans.push_back(c.question->For(budget));
  }
  const MinimumBudget least =
      LeastPlan(c.question->problem, ProfileLimits()).budget;
  for (int sample = 0; sample < 20; ++sample) {
    Plan by_chance;
    by_chance.model = c.profile.model.name;
    by_chance.memory = c.options.memory;
    by_chance.granularity = ToString(c.options.granularity);
    by_chance.tradeoff = ToString(c.options.tradeoff);
    by_chance.status = PlanStatus::kFeasible;
    by_chance.modules = UnitsByChance(c);
    PlanEffect effect;
    try {
      effect = ComputeEffect(c.profile, by_chance.modules, by_chance.memory,
                             by_chance.tradeoff);
    } catch (const InputError&) {
      continue;  // a module without a usable fit
    }
    // Peaks are stated in whole bytes, the check allows for rounding.
    double peak = 1;
    for (const RecordUse& record : effect.records) {
      peak = std::max(peak, record.Bytes());
    }
    by_chance.budget_bytes = static_cast<int64_t>(std::ceil(peak));
    if (FirstBrokenRule(c.profile, by_chance, RulesOf(c.options))) continue;
    EXPECT_GE(by_chance.budget_bytes, least.bound_bytes);
    for (const Plan& plan : plans) {
      if (peak > static_cast<double>(plan.budget_bytes)) continue;
      ++fitting;
      EXPECT_NE(plan.status, PlanStatus::kInfeasible);
      if (!plan.HasPlan()) continue;
      EXPECT_GE(effect.recompute_ms, plan.bound_ms - Rounding(plan));
    }
  }
  return fitting;
}

TEST(ProfileMetamorphic, NoPlanByChanceBeatsABound) {
  int fitting = 0;
  ForEachProfileCase(
      [&](QuestionCase& c) { fitting += CompareWithPlansByChance(c); });
  EXPECT_GT(fitting, Instances());
}

// A case that was found among the first 20,000: the hull lacked a corner of a
// unit's policies at which the unit discards nothing at all.
TEST(ProfileMetamorphic, AUnitThatDiscardsNothingIsACornerOfItsHull) {
  QuestionCase c(3924);
  ASSERT_TRUE(c.question);
  EXPECT_GT(CompareWithPlansByChance(c), 0);
}

}  // namespace
}  // namespace acplan::problems
