#include "problems/model/module_problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "problems/model/memory_model.h"
#include "problems/planner.h"
#include "tests/support/asked_plan.h"
#include "tests/support/reference_data.h"
#include "tests/support/repetitions.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using graph::Module;
using graph::ModuleTree;
using graph::Profile;
using test_support::Repetitions;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Lines = std::vector<std::pair<double, double>>;

double NaiveMax(const Lines& lines, double x) {
  double most = 0;
  for (const auto& [slope, at_zero] : lines) {
    most = std::max(most, at_zero + slope * x);
  }
  return most;
}

// Returns the least of NaiveMax over [x, most].
double NaiveRising(const Lines& lines, double x, double most) {
  double least = std::min(NaiveMax(lines, x), NaiveMax(lines, most));
  const auto consider = [&](double at) {
    if (x < at && at < most) least = std::min(least, NaiveMax(lines, at));
  };
  for (const auto& a : lines) {
    consider(-a.second / a.first);
    for (const auto& b : lines) {
      consider((b.second - a.second) / (a.first - b.first));
    }
  }
  return least;
}

TEST(CurveOfLines, IsTheirMaximumWithoutItsFallingPart) {
  std::mt19937 random(1);
  const auto uniform = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  for (int round = 0; round < Repetitions(3000); ++round) {
    SCOPED_TRACE(round);
    Lines lines;
    for (auto n = 1 + random() % 5; n > 0; --n) {
      if (!lines.empty() && random() % 4 == 0) {
        lines.push_back(lines.back());
        if (random() % 2 == 0) lines.back().second += 0.5;
      } else {
        lines.emplace_back(uniform(-3, 3), uniform(-2, 2));
      }
    }
    const double most = uniform(0.1, 3);
    const std::vector<Knot> curve = CurveOfLines(lines, most);
    ASSERT_FALSE(curve.empty());
    EXPECT_DOUBLE_EQ(curve.back().bytes, most);
    for (size_t k = 1; k < curve.size(); ++k) {
      EXPECT_GT(curve[k].bytes, curve[k - 1].bytes);
      EXPECT_GT(curve[k].ms, curve[k - 1].ms);
    }
    for (double share = 0; share <= 1; share += 0.05) {
      const double x = share * most;
      EXPECT_NEAR(CurveCost(curve, x), NaiveRising(lines, x, most), 1e-9);
    }
  }
}

TEST(CurveOfLines, NoLinesCostNothing) {
  const std::vector<Knot> curve = CurveOfLines({}, 5);
  EXPECT_EQ(CurveCost(curve, 5), 0);
  EXPECT_EQ(CurveCost(curve, 5.1), std::numeric_limits<double>::infinity());
}

struct SmallModel {
  Profile profile = test_support::SyntheticGpt(2);

  Module& Find(const std::string& fqn) {
    return *std::ranges::find(profile.modules, fqn, &Module::fqn);
  }
  BuiltModuleProblem Build(const ModuleProblemOptions& options = {}) const {
    return BuildModuleProblem(profile, ModuleTree(profile), options);
  }
  std::vector<std::string> Candidates(
      const ModuleProblemOptions& options) const {
    const ModuleTree tree(profile);
    const ModuleProblem problem = Build(options).problem;
    std::vector<std::string> names;
    for (int i = 0; i < tree.size(); ++i) {
      if (!problem.nodes[i].curve.empty()) {
        names.push_back(profile.modules[tree.node(i).module].fqn);
      }
    }
    return names;
  }
};

TEST(ModuleProblem, CandidatesAreTheNonLeafModules) {
  SmallModel model;
  EXPECT_THAT(model.Candidates({}),
              ElementsAre("GPT", "GPT.h.0", "GPT.h.0.attn", "GPT.h.0.mlp",
                          "GPT.h.1", "GPT.h.1.attn", "GPT.h.1.mlp"));
  EXPECT_THAT(model.Build().warnings, IsEmpty());
}

TEST(ModuleProblem, RestrictionsLeaveCandidatesOut) {
  SmallModel model;
  ModuleProblemOptions options;
  options.ac_units = {"GPT.h.0", "GPT.h.1", "GPT.h.1.mlp"};
  options.fsdp_units = {"GPT.h.1.attn", "GPT.h.0"};
  EXPECT_THAT(model.Candidates(options), ElementsAre("GPT.h.0", "GPT.h.1.mlp"));
}

TEST(ModuleProblem, NeverCalledModulesAreNoCandidates) {
  SmallModel model;
  model.Find("GPT.h.0.mlp").calls = 0;
  std::erase(model.profile.order.fw_post, "GPT.h.0.mlp");
  std::erase(model.profile.order.fw_pre, "GPT.h.0.mlp");
  EXPECT_THAT(model.Candidates({}), ::testing::Not(Contains("GPT.h.0.mlp")));
  ModuleProblemOptions options;
  options.ac_units = {"GPT.h.0.mlp", "GPT.h.1"};
  EXPECT_THAT(
      model.Build(options).warnings,
      ElementsAre(AllOf(HasSubstr("GPT.h.0.mlp"), HasSubstr("never called"))));
}

TEST(Warnings, RestrictionsWithoutEffect) {
  SmallModel model;
  ModuleProblemOptions options;
  options.ac_units = {"GPT.h.0.ln_1", "GPT.h.0", "GPT.h.1"};
  options.fsdp_units = {"GPT.h.0.mlp"};
  EXPECT_THAT(model.Build(options).warnings,
              ElementsAre(AllOf(HasSubstr("GPT.h.0.ln_1"), HasSubstr("leaf")),
                          AllOf(HasSubstr("GPT.h.0"), HasSubstr("FSDP unit"))));
}

TEST(Warnings, UnknownNamesAreErrorsWithTheNearest) {
  SmallModel model;
  const auto message = [&](const ModuleProblemOptions& options) {
    try {
      model.Build(options);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  ModuleProblemOptions ac;
  ac.ac_units = {"h.0.mlp"};
  EXPECT_THAT(message(ac),
              AllOf(HasSubstr("--ac-units"), HasSubstr("\"h.0.mlp\""),
                    HasSubstr("nearest: GPT.h.0.mlp")));
  ModuleProblemOptions fsdp;
  fsdp.fsdp_units = {"GPT.h.00"};
  EXPECT_THAT(message(fsdp),
              AllOf(HasSubstr("--fsdp-units"), HasSubstr("GPT.h.0")));
}

TEST(Warnings, SacMemoryBelowActivationsIsSaidOnceAType) {
  SmallModel model;
  for (const char* fqn : {"GPT.h.0.mlp", "GPT.h.1.mlp"}) {
    model.Find(fqn).torch_fit->sac_memory = 1000;
  }
  const BuiltModuleProblem built_problem = model.Build();
  EXPECT_THAT(built_problem.warnings,
              ElementsAre(AllOf(HasSubstr("GPT.h.*.mlp (2 modules)"),
                                HasSubstr("below the activation memory"))));
  const ModuleTree tree(model.profile);
  EXPECT_EQ(built_problem.scales[*tree.Find("GPT.h.0.mlp")].sac_bytes,
            static_cast<double>(model.Find("GPT.h.0.mlp").act_fw_per_module));
}

TEST(Warnings, FitsWithoutNumbers) {
  SmallModel model;
  model.Find("GPT.h.0.mlp").torch_fit->slopes[1] = std::nullopt;
  model.Find("GPT.h.1.attn").torch_fit = std::nullopt;
  const std::vector<std::string> warnings = model.Build().warnings;
  EXPECT_THAT(warnings,
              ElementsAre(AllOf(HasSubstr("GPT.h.0.mlp"),
                                HasSubstr("no usable trade-off fit")),
                          AllOf(HasSubstr("GPT.h.1.attn"),
                                HasSubstr("no usable trade-off fit"))));
}

TEST(Warnings, ResNetHasAFitThatIsNotConvex) {
  const Profile& profile = test_support::BundledProfile("resnet50");
  const BuiltModuleProblem built_problem =
      BuildModuleProblem(profile, ModuleTree(profile), {});
  EXPECT_THAT(built_problem.warnings,
              Contains(AllOf(HasSubstr("embedder"), HasSubstr("not convex"))));
}

TEST(ModuleProblem, HeldBytesShortenTheCurve) {
  SmallModel model;
  Module& block = model.Find("GPT.h.0");
  block.held_per_module = block.act_fw_per_module / 4;
  const ModuleTree tree(model.profile);
  const int node = *tree.Find("GPT.h.0");
  ModuleProblemOptions options;
  const std::vector<Knot> full = model.Build(options).problem.nodes[node].curve;
  options.memory.model = MemoryModel::kSnapshot;
  const std::vector<Knot> net = model.Build(options).problem.nodes[node].curve;
  const auto held_bytes = static_cast<double>(block.held_per_module);
  EXPECT_DOUBLE_EQ(net.back().bytes, full.back().bytes - held_bytes);
  for (double share = 0; share <= 1; share += 0.1) {
    const double d = share * net.back().bytes;
    EXPECT_NEAR(CurveCost(net, d), CurveCost(full, d + held_bytes), 1e-9);
  }
  block.held_per_module = block.act_fw_per_module;
  EXPECT_THAT(model.Build(options).problem.nodes[node].curve, IsEmpty());
}

TEST(ModuleProblem, ForcedSavesShortenTheCurve) {
  SmallModel model;
  Module& block = model.Find("GPT.h.0");
  block.sac = graph::SacStatistics{.func_names = {"dropout", "mm"},
                                   .runtimes = {1, 2},
                                   .memory = {1000, 2000},
                                   .view_like_ops = {},
                                   .rand_ops = {0},
                                   .saved_autograd_ops = {},
                                   .inplace_ops = {},
                                   .force_store_random = true};
  const int node = *ModuleTree(model.profile).Find("GPT.h.0");
  ModuleProblemOptions options;
  EXPECT_EQ(model.Build(options).problem.nodes[node].curve.back().bytes,
            static_cast<double>(block.act_fw_per_module - 1000));
  options.bound_by_forced_saves = false;
  EXPECT_EQ(model.Build(options).problem.nodes[node].curve.back().bytes,
            static_cast<double>(block.act_fw_per_module));
}

TEST(MemoryModels, HaveNames) {
  for (const MemoryModel model :
       {MemoryModel::kTorch, MemoryModel::kSnapshot, MemoryModel::kTrace}) {
    EXPECT_EQ(ParseMemoryModel(ToString(model)), model);
  }
  EXPECT_EQ(ParseMemoryModel("traced"), std::nullopt);
  for (const Engine engine : {Engine::kAuto, Engine::kLabels, Engine::kCbc}) {
    EXPECT_EQ(ParseEngine(ToString(engine)), engine);
  }
  EXPECT_EQ(ParseEngine("gurobi"), std::nullopt);
}

TEST(MemoryModels, SnapshotsAreTheDefaultWhereAllModulesHaveThem) {
  SmallModel model;
  EXPECT_EQ(DefaultMemoryModel(model.profile), MemoryModel::kSnapshot);
  model.Find("GPT.h.0.mlp").snap->peak_fw.reset();
  EXPECT_EQ(DefaultMemoryModel(model.profile), MemoryModel::kTorch);
  ModuleProblemOptions options;
  options.memory.model = MemoryModel::kSnapshot;
  EXPECT_THROW(model.Build(options), InputError);
}

TEST(MemoryModels, RanksShareParametersGradientsAndStatesOnly) {
  SmallModel model;
  const ModuleTree tree(model.profile);
  const auto largest = [&](const MemoryOptions& options) {
    double most = 0;
    for (const MemoryRecord& record :
         MemoryRecords(model.profile, tree, options)) {
      if (record.node == 0) most = record.base_bytes;
    }
    return most;
  };
  const auto parameters =
      static_cast<double>(*model.profile.measured.param_bytes);
  MemoryOptions one;
  MemoryOptions four = one;
  four.world_size = 4;
  EXPECT_DOUBLE_EQ(largest(one) - largest(four), 0.75 * parameters);
  one.model = four.model = MemoryModel::kSnapshot;
  EXPECT_DOUBLE_EQ(largest(one) - largest(four), 0.75 * 3 * parameters);
  one.without_states = four.without_states = true;
  EXPECT_DOUBLE_EQ(largest(one) - largest(four), 0.75 * parameters);
}

TEST(MemoryModels, TheOptimizerStepIsARecordOfItsOwn) {
  SmallModel model;
  const ModuleTree tree(model.profile);
  MemoryOptions options = {.model = MemoryModel::kSnapshot};
  const auto records = MemoryRecords(model.profile, tree, options);
  EXPECT_EQ(records.back().node, -1);
  EXPECT_EQ(records.back().phase, Phase::kOptimizerStep);
  EXPECT_EQ(records.back().base_bytes,
            static_cast<double>(*model.profile.measured.opt_step_peak_bytes));
  options.without_states = true;
  EXPECT_EQ(MemoryRecords(model.profile, tree, options).size(),
            records.size() - 1);
}

TEST(Ask, RefusesOptionsOutOfRange) {
  SmallModel model;
  const ModuleTree tree(model.profile);
  const auto message = [&](const PlanOptions& options) {
    try {
      test_support::AskedPlan(model.profile, tree, options);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  PlanOptions options{.granularity = Granularity::kModule,
                      .tradeoff = Tradeoff::kProfile};
  EXPECT_THAT(message(options), HasSubstr("budget: "));
  options.budget_bytes = 1'000'000'000;
  PlanOptions bad = options;
  bad.reserve_bytes = options.budget_bytes;
  EXPECT_THAT(message(bad), HasSubstr("reserve: "));
  bad = options;
  bad.memory.world_size = 0;
  EXPECT_THAT(message(bad), HasSubstr("world_size: "));
  bad = options;
  bad.max_units = -1;
  EXPECT_THAT(message(bad), HasSubstr("max_units: "));
  std::swap(model.profile.order.fw_post.front(),
            model.profile.order.fw_post.back());
  bad = options;
  bad.engine = Engine::kLabels;
  try {
    test_support::AskedPlan(model.profile, ModuleTree(model.profile), bad);
    ADD_FAILURE() << "no error";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("use engine cbc"));
  }
}

}  // namespace
}  // namespace acplan::problems
