#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "costmodel/training/plans/training_plan.h"
#include "costmodel/training/plans/training_plan_check.h"
#include "costmodel/training/settings/strategy_settings.h"

namespace acplan::costmodel {
namespace {

TrainingJob PlannedJob(const std::string& model, const std::string& settings,
                       int64_t layers) {
  static const TrainingSystems kSystems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  ModelShape shape = ReadHuggingFaceConfig(ACPLAN_DATA_DIR "/training/models/" +
                                           model + ".json");
  shape.layers = layers;
  shape.dense_layers = std::min(shape.dense_layers, layers / 2);
  return JobOfSettings(shape, ParseStrategySettings(settings, "s.json"),
                       kSystems);
}

// Returns the job with a gate of attention's result.
TrainingJob Gated(TrainingJob job) {
  job.shape.attention_gate = job.shape.heads * job.shape.head_dim;
  return job;
}

// Returns one job for each structure that layers have.
std::vector<TrainingJob> JobsOfManyStructures() {
  return {
      PlannedJob("llama-3.1-8b", R"({"gpu": "h100", "gpus": 8, "tp": 2})", 4),
      PlannedJob("llama-3.1-8b", R"({"gpu": "h100", "gpus": 8, "cp": 2})", 4),
      PlannedJob("llama-3.1-70b",
                 R"({"gpu": "a100", "gpus": 8, "tp": 4, "sp": false,
                     "dropout": 0.1, "attention": "unfused"})",
                 4),
      PlannedJob("qwen3-30b-a3b", R"({"gpu": "h100", "gpus": 8, "ep": 4})", 4),
      PlannedJob("deepseek-v3",
                 R"({"gpu": "h800", "gpus": 8, "ep": 8, "tp": 2,
                     "dropout": 0.1})",
                 4),
      PlannedJob("deepseek-v3", R"({"gpu": "b200", "gpus": 8, "ep": 8,
                                    "precision": "mxfp8"})",
                 4),
      Gated(PlannedJob("llama-3.1-8b", R"({"gpu": "h100", "gpus": 8, "tp": 2})",
                       4)),
      Gated(PlannedJob("llama-3.1-8b",
                       R"({"gpu": "a100", "gpus": 8, "tp": 2,
                           "dropout": 0.1, "attention": "unfused"})",
                       4)),
  };
}

TEST(LayerGraph, HasWhatOperationsSave) {
  for (const TrainingJob& job : JobsOfManyStructures()) {
    for (const bool is_moe : {false, true}) {
      if (is_moe && !job.shape.IsMoe()) continue;
      double saved = 0;
      PassTime forward;
      for (const LayerOperation& operation :
           LayerOperations(job.shape, job.strategy, {.is_moe = is_moe})) {
        saved += operation.saved_bytes;
        forward += ForwardTime(operation, job);
      }
      const LayerGraph graph = GraphOfLayer(job, is_moe);
      EXPECT_DOUBLE_EQ(graph.WholeBytes(), saved);
      EXPECT_GT(graph.input_bytes, 0);
      PassTime of_graph;
      for (const GraphOperation& operation : graph.operations) {
        of_graph += operation.forward;
      }
      EXPECT_DOUBLE_EQ(of_graph.Total(), forward.Total());
    }
  }
}

// No choice of tensors is better than all policies, and no policy is beaten.
TEST(LayerPolicies, AreThoseThatNoSubsetBeats) {
  for (const TrainingJob& job : JobsOfManyStructures()) {
    const LayerGraph graph = GraphOfLayer(job, job.shape.IsMoe());
    const std::vector<LayerPolicy> policies =
        PoliciesOfLayer(graph, SetsOfPolicies(graph));
    EXPECT_EQ(policies.back().sets.runs, 0U);
    EXPECT_EQ(policies.front().sets.kept_tensors, 0U);
    const auto subsets = TensorSet{1} << graph.tensors.size();
    for (TensorSet kept_set = 0; kept_set < subsets; ++kept_set) {
      const OperationSet runs = RunsAgain(graph, kept_set);
      double gpu = 0;
      double host = 0;
      for (size_t i = 0; i < graph.operations.size(); ++i) {
        if ((runs >> i & 1) == 0) continue;
        gpu += graph.operations[i].forward.compute +
               graph.operations[i].forward.communication.Total();
        host += graph.operations[i].forward.host;
      }
      const double bytes = graph.KeptBytes(kept_set);
      bool is_reached = false;
      for (const LayerPolicy& policy : policies) {
        is_reached |= policy.bytes <= bytes && policy.gpu <= gpu + 1e-12 &&
                      policy.host <= host + 1e-12;
        EXPECT_FALSE(bytes < policy.bytes && gpu < policy.gpu - 1e-12 &&
                     host < policy.host - 1e-12);
      }
      EXPECT_TRUE(is_reached);
    }
  }
}

// Every way to give layers policies.
class ChoiceOracle {
 public:
  ChoiceOracle(const std::array<LayerOffer, 2>& offers, const StageRoom& room)
      : offers_(offers), room_(room) {}

  double Least() {
    Visit(0, 0, offers_[0].layers, {});
    return least_;
  }

 private:
  struct Sums {
    double bytes = 0;
    double gpu = 0;
    double host = 0;
    double most = 0;         // of a layer of the visited kind
    double again_bytes = 0;  // of kinds before
  };

  void Visit(size_t kind, size_t policy, int64_t remaining_layers, Sums sums) {
    const LayerOffer& offer = offers_[kind];
    if (remaining_layers == 0) {
      if (offer.layers > 0) {
        sums.again_bytes =
            std::max(sums.again_bytes, offer.whole_bytes - sums.most);
      }
      sums.most = 0;
      if (kind == 0) return Visit(1, 0, offers_[1].layers, sums);
      const double held_bytes = room_.in_flight * sums.bytes +
                                std::max(room_.logits, sums.again_bytes);
      if (held_bytes > room_.bytes + kByteRounding) return;
      least_ = std::min(least_, std::max(sums.gpu, sums.host));
      return;
    }
    if (policy == offer.policies.size()) return;
    Visit(kind, policy + 1, remaining_layers, sums);
    const LayerPolicy& p = offer.policies[policy];
    sums.bytes += p.bytes;
    sums.gpu += p.gpu;
    sums.host += p.host;
    sums.most = std::max(sums.most, p.bytes);
    Visit(kind, policy, remaining_layers - 1, sums);
  }

  const std::array<LayerOffer, 2>& offers_;
  const StageRoom& room_;
  double least_ = std::numeric_limits<double>::infinity();
};

// Returns policies that do not beat each other: those with more bytes take less
// time by at least one measure.
std::vector<LayerPolicy> RandomPolicies(std::mt19937& random, double slant) {
  std::uniform_real_distribution<double> real(0, 1);
  std::vector<LayerPolicy> policies;
  const int count = std::uniform_int_distribution(1, 5)(random);
  double bytes = 1;
  for (int i = 0; i < count; ++i) {
    const double rest = static_cast<double>(count - 1 - i);
    policies.push_back({.bytes = bytes,
                        .gpu = rest * (1 + real(random)),
                        .host = slant * rest * (1 + real(random))});
    bytes += std::uniform_int_distribution(0, 6)(random);
  }
  return policies;
}

TEST(LayerPolicies, ChosenForAStageAreTheBestOfAll) {
  std::mt19937 random(20261123);
  int feasible = 0;
  for (int i = 0; i < 3000; ++i) {
    constexpr double kSlants[] = {0, .3, 1, 4};
    const double slant = kSlants[i % 4];
    const std::vector<LayerPolicy> dense = RandomPolicies(random, slant);
    const std::vector<LayerPolicy> moe = RandomPolicies(random, slant);
    std::array<LayerOffer, 2> offers;
    offers[0].policies = dense;
    offers[1].policies = moe;
    std::array<std::vector<size_t>, 4> hulls;
    for (size_t k = 0; k < 2; ++k) {
      offers[k].layers =
          std::uniform_int_distribution(k == 0 ? 1 : 0, 4)(random);
      offers[k].whole_bytes = offers[k].policies.back().bytes;
      hulls[2 * k] = LowerHull(offers[k].policies, 1);
      hulls[2 * k + 1] = LowerHull(offers[k].policies, 0);
      offers[k].gpu_hull = hulls[2 * k];
      offers[k].host_hull = hulls[2 * k + 1];
    }
    std::uniform_real_distribution<double> real(0, 1);
    const double whole =
        static_cast<double>(offers[0].layers) * offers[0].whole_bytes +
        static_cast<double>(offers[1].layers) * offers[1].whole_bytes;
    StageRoom room{.in_flight = 1 + std::floor(4 * real(random)),
                   .logits = std::floor(5 * real(random))};
    room.bytes = room.in_flight * whole * (.2 + real(random));
    const double least = ChoiceOracle(offers, room).Least();
    const PolicyChoice choice = ChooseLayerPolicies(offers, room);
    ASSERT_EQ(choice.is_feasible, least < 1e300) << i;
    EXPECT_LE(LeastSeconds(offers, room), least * (1 + 1e-9) + 1e-12) << i;
    if (!choice.is_feasible) continue;
    ++feasible;
    EXPECT_TRUE(choice.is_optimal);
    ASSERT_NEAR(choice.seconds, least, 1e-9 * least + 1e-12) << i;
    EXPECT_DOUBLE_EQ(choice.bound, choice.seconds);
  }
  EXPECT_GT(feasible, 1000);
}

// Every limit that ends the search leaves a choice that fits, and a bound.
TEST(LayerPolicies, ASearchThatIsStoppedHasWhatItFound) {
  std::mt19937 random(20261123);
  std::vector<LayerPolicy> policies;
  std::uniform_real_distribution<double> real(0, .9);
  for (int i = 0; i < 60; ++i) {
    policies.push_back({.bytes = 1e6 + 1e5 * (i + real(random)),
                        .gpu = 120 - 2 * (i - real(random))});
  }
  const std::vector<size_t> hull = LowerHull(policies, 1);
  std::array<LayerOffer, 2> offers;
  offers[0] = {.policies = policies,
               .gpu_hull = hull,
               .host_hull = hull,
               .whole_bytes = policies.back().bytes,
               .layers = 100};
  const StageRoom room{.in_flight = 1, .bytes = 100 * 4.00001e6};
  int calls = 0;
  const auto is_stopped = [&calls] { return ++calls > 3; };
  const PolicyChoice choice =
      ChooseLayerPolicies(offers, room, {.is_stopped = is_stopped});
  EXPECT_TRUE(choice.is_feasible);
  EXPECT_FALSE(choice.is_optimal);
  EXPECT_LE(choice.bound, choice.seconds);
  EXPECT_GT(calls, 3);
  EXPECT_LT(calls, 200);
}

// Otherwise many searches of few labels each would go on after their end.
TEST(LayerPolicies, ASearchOfFewLabelsIsStopped) {
  const std::vector<LayerPolicy> policies = {{.bytes = 1, .gpu = 9},
                                             {.bytes = 2, .gpu = 5},
                                             {.bytes = 4, .gpu = 2},
                                             {.bytes = 7, .gpu = 0}};
  const std::vector<size_t> hull = LowerHull(policies, 1);
  std::array<LayerOffer, 2> offers;
  offers[0] = {.policies = policies,
               .gpu_hull = hull,
               .host_hull = hull,
               .whole_bytes = policies.back().bytes,
               .layers = 3};
  const PolicyChoice choice = ChooseLayerPolicies(
      offers, {.bytes = 13}, {.is_stopped = [] { return true; }});
  EXPECT_TRUE(choice.is_feasible);
  EXPECT_FALSE(choice.is_optimal);
  EXPECT_LT(choice.bound, choice.seconds);
}

TrainingJob Windowed(TrainingJob job) {
  job.shape.sliding_window = 1024;
  job.shape.full_layers = job.shape.layers / 3;
  return job;
}

double SecondsOfMode(TrainingJob job, Recomputation mode, int64_t layers,
                     double budget) {
  job.strategy.recomputation = mode;
  job.strategy.full_layers = layers;
  if (PredictStepMemory(job).Worst().Total() > budget) {
    return std::numeric_limits<double>::infinity();
  }
  return PredictStepTime(job).Total();
}

// Budgets from the one that keeps all to the one that keeps inputs only.
TEST(TrainingPlan, HoldsAndIsNotSlowerThanWholeLayersRecomputed) {
  int plan_count = 0;
  for (const TrainingJob& stated :
       {PlannedJob("llama-3.1-8b",
                   R"({"gpu": "h100", "gpus": 16, "tp": 2, "pp": 4, "vp": 2,
                       "gbs": 16, "recompute": "plan"})",
                   16),
        PlannedJob("llama-3.1-8b",
                   R"({"gpu": "h100", "gpus": 8, "zero": 3, "gbs": 16,
                       "mbs": 2, "recompute": "plan"})",
                   9),
        PlannedJob("deepseek-v3",
                   R"({"gpu": "h800", "gpus": 16, "pp": 2, "ep": 8, "gbs": 64,
                       "recompute": "plan"})",
                   7),
        Gated(PlannedJob("llama-3.1-8b",
                         R"({"gpu": "h100", "gpus": 8, "pp": 2, "gbs": 16,
                             "recompute": "plan"})",
                         8)),
        Windowed(PlannedJob("llama-3.1-8b",
                            R"({"gpu": "h100", "gpus": 8, "pp": 2, "gbs": 16,
                                "seq": 8192, "recompute": "plan"})",
                            8))}) {
    TrainingJob job = stated;
    job.strategy.recomputation = Recomputation::kNone;
    const double most = PredictStepMemory(job).Worst().Total();
    job.strategy.recomputation = Recomputation::kPlan;
    double before = 0;
    for (double share = 1.1; share > .4; share -= .05) {
      const double budget = share * most;
      const TrainingPlan plan = PlanTraining(job, budget);
      const auto error = FindTrainingPlanError(job, budget, plan);
      EXPECT_FALSE(error) << *error;
      double fixed = SecondsOfMode(job, Recomputation::kNone, 0, budget);
      for (int64_t n = 0; n < 9; ++n) {
        fixed = std::min(fixed,
                         SecondsOfMode(job, Recomputation::kFull, n, budget));
      }
      if (!plan.Fits()) {
        EXPECT_GT(fixed, 1e300);
        continue;
      }
      ++plan_count;
      EXPECT_TRUE(plan.IsOptimal());
      EXPECT_LE(plan.time.Total(), fixed * (1 + 1e-12));
      EXPECT_GE(plan.time.Total(), before * (1 - 1e-12));
      before = plan.time.Total();
      // The memory that the plan takes is enough for it.
      const double exact = plan.Memory().Worst().Total();
      EXPECT_NEAR(PlanTraining(job, exact).time.Total(), plan.time.Total(),
                  1e-12 * before);
    }
  }
  EXPECT_GT(plan_count, 25);
}

// The check notices changes.
TEST(TrainingPlan, WrongOnesAreFound) {
  const TrainingJob job =
      PlannedJob("llama-3.1-8b", R"({"gpu": "h100", "gpus": 8, "pp": 2,
                                     "gbs": 32, "recompute": "plan"})",
                 12);
  const auto bytes_with = [&](Recomputation recomputation) {
    TrainingJob other = job;
    other.strategy.recomputation = recomputation;
    return PredictStepMemory(other).Worst().Total();
  };
  const double most = bytes_with(Recomputation::kNone);
  const double least = bytes_with(Recomputation::kFull);
  ASSERT_LT(least, .99 * most);
  const double budget = (most + least) / 2;
  const TrainingPlan plan = PlanTraining(job, budget);
  ASSERT_TRUE(plan.Fits());
  ASSERT_FALSE(FindTrainingPlanError(job, budget, plan));
  const auto is_found = [&](auto change) {
    TrainingPlan wrong = plan;
    change(wrong);
    return FindTrainingPlanError(job, budget, wrong).has_value();
  };
  EXPECT_TRUE(is_found([](TrainingPlan& p) { p.stages.pop_back(); }));
  EXPECT_TRUE(
      is_found([](TrainingPlan& p) { ++p.stages[0].shares[0].layers; }));
  EXPECT_TRUE(is_found([](TrainingPlan& p) {
    p.stages[0].shares[0].policy.sets.kept_tensors ^= 1;
  }));
  EXPECT_TRUE(is_found(
      [](TrainingPlan& p) { p.stages[0].shares[0].policy.sets.runs ^= 2; }));
  EXPECT_TRUE(is_found(
      [](TrainingPlan& p) { p.stages[0].shares[0].policy.bytes *= 1.01; }));
  EXPECT_TRUE(is_found(
      [](TrainingPlan& p) { p.stages[0].recomputation.compute *= .99; }));
  EXPECT_TRUE(
      is_found([](TrainingPlan& p) { p.stages[1].memory.logits += 4096; }));
  EXPECT_TRUE(is_found([](TrainingPlan& p) { p.time.bubble *= .9; }));
  EXPECT_TRUE(FindTrainingPlanError(job, .5 * budget, plan).has_value());
}

}  // namespace
}  // namespace acplan::costmodel
