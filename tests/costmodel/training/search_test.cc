#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/plans/training_plan.h"
#include "costmodel/training/search/strategy_search.h"
#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/time/step_time.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

const TrainingSystems& SearchedSystems() {
  static const TrainingSystems kSystems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  return kSystems;
}

struct SearchCase {
  std::string name;
  std::string model;
  std::string settings;
  int64_t layers;  // in place of the model's: oracles are slow
  double gib;
  bool has_all_schedules = false;
  bool has_communicators = false;  // in `gib`
  bool has_states_offload = false;

  MemoryLimit limit() const {
    return {gib * 1024 * 1024 * 1024, has_communicators};
  }
};

TrainingJob JobOf(const SearchCase& searched) {
  ModelShape shape = ReadHuggingFaceConfig(ACPLAN_DATA_DIR "/training/models/" +
                                           searched.model + ".json");
  shape.layers = searched.layers;
  shape.dense_layers = std::min(shape.dense_layers, searched.layers);
  if (shape.IsHybrid()) {
    shape.layers_without_attention = shape.linear.layers = searched.layers / 2;
  }
  return StatedJob(shape, ParseStrategySettings(searched.settings, "s.json"),
                   SearchedSystems());
}

// Returns the strategy with the model's figures, or nothing if it is not legal,
// by the functions that commands call.
std::optional<RankedStrategy> Judged(const TrainingJob& job,
                                     const TrainingStrategy& strategy,
                                     const MemoryLimit& limit) {
  TrainingJob judged = job;
  judged.strategy = strategy;
  if (strategy.Data() < 1) return std::nullopt;
  try {
    CheckStrategy(job.shape, strategy, "test");
    CheckStatedStrategy(judged);
  } catch (const InputError&) {
    return std::nullopt;
  }
  if (strategy.recomputation == Recomputation::kPlan) {
    const TrainingPlan plan = PlanTraining(judged, PyTorchBytes(limit, judged));
    return RankedStrategy{.strategy = strategy,
                          .seconds = plan.time.Total(),
                          .bytes = plan.Memory().Worst().Total()};
  }
  return RankedStrategy{.strategy = strategy,
                        .seconds = PredictStepTime(judged).Total(),
                        .bytes = PredictStepMemory(judged).Worst().Total()};
}

int64_t MostLayers(TrainingJob job, const TrainingStrategy& strategy) {
  job.strategy = strategy;
  int64_t most = 0;
  for (const StageContent& stage : DivideLayers(job)) {
    most = std::max(most, stage.Layers());
  }
  return most;
}

// Every strategy of the space, each number of recomputed layers by itself.
struct Enumeration {
  std::vector<RankedStrategy> all = {};
  int64_t legal = 0;
};

class Enumerator {
 public:
  Enumerator(const TrainingJob& job, const StrategySpace& space,
             const MemoryLimit& limit)
      : job_(job), space_(space), limit_(limit) {}

  Enumeration Run() {
    TrainingStrategy s = job_.strategy;
    for (const int64_t tensor : space_.tensor) {
      for (const int64_t context : space_.context) {
        for (const int64_t expert : space_.expert) {
          s.tensor = tensor;
          s.sequence_parallel = tensor > 1;
          s.context = context;
          s.expert = expert;
          TryExchanges(s);
        }
      }
    }
    return enumeration_;
  }

 private:
  void TryExchanges(TrainingStrategy s) {
    std::set<int64_t> expert_tensor = {1};
    if (space_.has_expert_tensor) expert_tensor.insert(s.tensor);
    for (const int64_t degree : expert_tensor) {
      s.expert_tensor = degree;
      s.context_exchange = ContextExchange::kRing;
      TryPipelines(s);
      if (s.context == 1) continue;
      s.context_exchange = ContextExchange::kAllToAll;
      TryPipelines(s);
    }
  }

  void TryPipelines(TrainingStrategy s) {
    for (const int64_t pipeline : space_.pipeline) {
      for (const int64_t chunks : space_.chunks) {
        for (const PipelineSchedule schedule : space_.schedules) {
          const bool is_one =
              schedule == PipelineSchedule::kOneForwardOneBackward;
          const bool is_interleaved =
              schedule == PipelineSchedule::kInterleaved;
          const bool is_v = IsVShaped(schedule);
          if ((is_one && chunks > 1) || (is_interleaved && chunks == 1) ||
              (is_v && chunks != 2)) {
            continue;
          }
          s.pipeline = pipeline;
          s.chunks = chunks;
          s.schedule = schedule;
          s.overlaps_expert =
              s.expert > 1 && schedule == PipelineSchedule::kDualPipe;
          TryDivisions(s);
        }
      }
    }
  }

  void TryDivisions(TrainingStrategy s) {
    const int64_t layers = job_.shape.layers + job_.shape.mtp_layers;
    const int64_t parts = s.pipeline * s.chunks;
    std::vector<std::vector<StageContent>> divisions;
    for (const int64_t counted_layers : {0, 1, 2, 3}) {
      s.counts_embedding = counted_layers % 2 == 1;
      s.counts_logits = counted_layers >= 2;
      const bool is_even = layers % parts == 0;
      if (counted_layers == 0 && !is_even && (layers + 2) % parts != 0)
        continue;
      // One stage has all; if all count and none could, that is the first case.
      if (counted_layers > 0 &&
          (parts == 1 || (counted_layers == 3 && !is_even)))
        continue;
      if (counted_layers > 0 &&
          (layers + (counted_layers + 1) / 2) % parts != 0)
        continue;
      if (parts > layers + 2) continue;
      // Different words for the same stages are one strategy.
      TrainingJob divided = job_;
      divided.strategy = s;
      divisions.push_back(DivideLayers(divided));
      if (std::ranges::find(divisions, divisions.back()) != divisions.end() - 1)
        continue;
      for (const int64_t microbatch : space_.microbatch) {
        s.microbatch = microbatch;
        TryMemory(s);
      }
    }
  }

  void TryMemory(TrainingStrategy s) {
    for (const int64_t zero : space_.zero) {
      s.zero = zero;
      s.optimizer_copies = 1;
      s.fsdp = zero >= 2 ? s.Data() * s.context : 0;
      TryStates(s);
      const int64_t ranks = s.Data() * s.context;
      const int64_t groups_in_domain = job_.cluster.domain / s.tensor;
      if (zero == 0 || groups_in_domain <= 1 || groups_in_domain >= ranks ||
          ranks % groups_in_domain != 0) {
        continue;
      }
      s.optimizer_copies = ranks / groups_in_domain;
      s.fsdp = zero >= 2 ? groups_in_domain : 0;
      TryStates(s);
    }
  }

  void TryStates(TrainingStrategy s) {
    s.offloads_states = false;
    TryRecomputations(s);
    if (!space_.has_states_offload) return;
    s.offloads_states = true;
    TryRecomputations(s);
  }

  void TryRecomputations(TrainingStrategy s) {
    for (const Recomputation recomputation : space_.recomputation) {
      s.recomputation = recomputation;
      s.full_layers = 0;
      s.parts.clear();
      if (recomputation == Recomputation::kSelective) {
        s.parts = {LayerPart::kCoreAttention};
      }
      const auto judged = Judged(job_, s, limit_);
      if (!judged) continue;
      enumeration_.all.push_back(*judged);
      ++enumeration_.legal;
      if (recomputation == Recomputation::kFull) TryNumbers(s);
      if (recomputation == Recomputation::kNone && s.pipeline == 1) {
        TryOffload(s);
      }
    }
  }

  void TryOffload(TrainingStrategy s) {
    for (int64_t n = 1; n <= job_.shape.layers; ++n) {
      s.offloaded_layers = n;
      const auto judged = Judged(job_, s, limit_);
      if (!judged) continue;
      enumeration_.all.push_back(*judged);
      ++enumeration_.legal;
    }
  }

  void TryNumbers(TrainingStrategy s) {
    for (int64_t n = 1; n < MostLayers(job_, s); ++n) {
      s.full_layers = n;
      const auto judged = Judged(job_, s, limit_);
      if (judged) enumeration_.all.push_back(*judged);
      ++enumeration_.legal;
    }
  }

  const TrainingJob& job_;
  const StrategySpace& space_;
  MemoryLimit limit_;
  Enumeration enumeration_ = {};
};

class SearchedCase : public ::testing::TestWithParam<SearchCase> {};

// The search finds the strategies that trying all of them finds.
TEST_P(SearchedCase, FindsWhatEnumerationFinds) {
  const SearchCase& searched = GetParam();
  const TrainingJob job = JobOf(searched);
  StrategySpace space = WholeSpace(job);
  if (searched.has_all_schedules) space.schedules = EverySchedule();
  space.has_offload = true;
  space.has_states_offload = searched.has_states_offload;
  space.chunks = {1, 2, 3};
  space.microbatch = {1, 2};
  const MemoryLimit budget = searched.limit();
  const auto fits = [&](const RankedStrategy& ranked) {
    TrainingJob judged = job;
    judged.strategy = ranked.strategy;
    return ranked.bytes <= PyTorchBytes(budget, judged) + kByteRounding;
  };
  const StrategySearch search =
      SearchStrategies(job, space, budget, {.count = 1});
  Enumeration every = Enumerator(job, space, budget).Run();
  EXPECT_EQ(search.strategies, every.legal);
  EXPECT_LE(search.evaluated, 4 * every.legal);
  std::erase_if(every.all,
                [&](const RankedStrategy& ranked) { return !fits(ranked); });
  ASSERT_EQ(search.best.empty(), every.all.empty());
  if (every.all.empty()) return;
  const auto fastest =
      std::ranges::min_element(every.all, {}, &RankedStrategy::seconds);
  EXPECT_DOUBLE_EQ(search.best[0].seconds, fastest->seconds);
  // The other commands have the same figures for each strategy shown.
  for (const RankedStrategy& ranked :
       SearchStrategies(job, space, budget, {.count = 50}).best) {
    const auto judged = Judged(job, ranked.strategy, budget);
    ASSERT_TRUE(judged.has_value());
    EXPECT_DOUBLE_EQ(judged->seconds, ranked.seconds);
    EXPECT_DOUBLE_EQ(judged->bytes, ranked.bytes);
    EXPECT_TRUE(fits(ranked));
  }
  // Whenever it ends, it states a valid limit on the distance from the best.
  for (const double seconds : {0.0, 1e-3}) {
    const StrategySearch hurried = SearchStrategies(
        job, space, budget, {.count = 5}, {.seconds = seconds});
    EXPECT_LE(hurried.Bound(), fastest->seconds * (1 + 1e-9));
    EXPECT_EQ(hurried.is_proven, std::isinf(hurried.open_bound));
    for (const RankedStrategy& ranked : hurried.best) {
      EXPECT_LE(ranked.bound, Judged(job, ranked.strategy, budget)->seconds);
      EXPECT_GE(ranked.seconds, Judged(job, ranked.strategy, budget)->seconds);
    }
  }
}

// A search that is interrupted before it begins has tried nothing, and claims
// nothing.
TEST(SearchStrategies, AnInterruptLeavesStrategiesUntried) {
  const TrainingJob job =
      JobOf({"Dense", "llama-3.1-8b",
             R"({"gpu": "h100", "gpus": 8, "gbs": 16})", 6, 8});
  const StrategySpace space = WholeSpace(job);
  const MemoryLimit budget = {80.0 * 1024 * 1024 * 1024};
  std::atomic<bool> interrupted = false;
  const StrategySearchLimits limits = {.interrupted = &interrupted};
  const StrategySearch whole =
      SearchStrategies(job, space, budget, {.count = 1}, limits);
  EXPECT_TRUE(whole.is_complete);
  EXPECT_TRUE(whole.is_proven);
  ASSERT_EQ(whole.best.size(), 1U);
  EXPECT_DOUBLE_EQ(whole.Bound(), whole.best[0].seconds);
  interrupted = true;
  const StrategySearch none =
      SearchStrategies(job, space, budget, {.count = 1}, limits);
  EXPECT_FALSE(none.is_complete);
  EXPECT_FALSE(none.is_proven);
  EXPECT_EQ(none.strategies, 0);
  EXPECT_EQ(none.evaluated, 0);
  EXPECT_TRUE(none.best.empty());
  EXPECT_EQ(none.Bound(), 0);
}

// At any moment the strategy found is in the space, and the bound holds.
TEST(SearchStrategies, AnInterruptKeepsWhatWasFound) {
  const TrainingJob job =
      JobOf({"Experts", "qwen3-30b-a3b",
             R"({"gpu": "h100", "gpus": 64, "gbs": 512})", 12, 40});
  const StrategySpace space = WholeSpace(job);
  const MemoryLimit budget = {40.0 * 1024 * 1024 * 1024};
  const StrategySearch whole =
      SearchStrategies(job, space, budget, {.count = 1});
  ASSERT_EQ(whole.best.size(), 1U);
  for (const int milliseconds : {0, 1, 3, 10, 30}) {
    std::atomic<bool> interrupted = false;
    std::thread other([&interrupted, milliseconds] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      interrupted = true;
    });
    const StrategySearch search = SearchStrategies(
        job, space, budget, {.count = 1}, {.interrupted = &interrupted});
    other.join();
    EXPECT_LE(search.strategies, whole.strategies);
    EXPECT_LE(search.Bound(), whole.best[0].seconds * (1 + 1e-9));
    EXPECT_TRUE(!search.is_complete || search.strategies == whole.strategies);
    EXPECT_TRUE(search.is_complete || !search.is_proven);
    for (const RankedStrategy& ranked : search.best) {
      EXPECT_GE(ranked.seconds, whole.best[0].seconds * (1 - 1e-9));
      EXPECT_LE(ranked.bytes, budget.bytes + kByteRounding);
      EXPECT_TRUE(Judged(job, ranked.strategy, budget).has_value());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, SearchedCase,
    ::testing::Values(
        SearchCase{"Dense", "llama-3.1-8b",
                   R"({"gpu": "h100", "gpus": 8, "gbs": 16})", 6, 8},
        SearchCase{"DenseTight", "llama-3.1-8b",
                   R"({"gpu": "a100", "gpus": 8, "gbs": 16, "seq": 8192})", 8,
                   6},
        SearchCase{"DenseWithCommunicators", "llama-3.1-8b",
                   R"({"gpu": "a100", "gpus": 8, "gbs": 16})", 6, 9.5, false,
                   true},
        SearchCase{"ExpertsWithCommunicators", "qwen3-30b-a3b",
                   R"({"gpu": "h100", "gpus": 4, "gbs": 16})", 4, 24, false,
                   true},
        SearchCase{"DenseLoose", "llama-3.1-70b",
                   R"({"gpu": "h200", "gpus": 8, "gbs": 8})", 4, 1000},
        SearchCase{"NothingFits", "llama-3.1-70b",
                   R"({"gpu": "h200", "gpus": 8, "gbs": 8})", 4, .5},
        SearchCase{"LowPrecision", "llama-3.1-8b",
                   R"({"gpu": "b200", "gpus": 8, "gbs": 16,
                       "precision": "mxfp8"})",
                   6, 8},
        SearchCase{"StatesOnHost", "llama-3.1-8b",
                   R"({"gpu": "h100", "gpus": 4, "gbs": 8})", 6, 9, false,
                   false, true},
        SearchCase{"StatesOfExpertsOnHost", "qwen3-30b-a3b",
                   R"({"gpu": "gb200", "gpus": 4, "gbs": 8, "tp": 1})", 4, 14,
                   false, false, true},
        SearchCase{"Experts", "qwen3-30b-a3b",
                   R"({"gpu": "h100", "gpus": 8, "gbs": 16, "tp": 1})", 4, 20},
        SearchCase{"Hybrid", "qwen3-next-80b-a3b",
                   R"({"gpu": "h100", "gpus": 4, "gbs": 8})", 4, 40},
        SearchCase{"AllSchedules", "llama-3.1-8b",
                   R"({"gpu": "h100", "gpus": 8, "gbs": 32})", 7, 9, true},
        SearchCase{"Eager", "llama-3.1-8b",
                   R"({"gpu": "h100", "gpus": 8, "gbs": 16,
                       "implementation": "eager"})",
                   6, 12},
        SearchCase{"Groups", "llama-3.1-8b",
                   R"({"gpu": "h100", "gpus": 16, "gbs": 32,
                       "nvlink_domain": 4})",
                   6, 7},
        SearchCase{"ExpertsAndAllSchedules", "qwen3-30b-a3b",
                   R"({"gpu": "h100", "gpus": 4, "gbs": 16})", 4, 30, true},
        SearchCase{"Latent", "deepseek-v3",
                   R"({"gpu": "h800", "gpus": 8, "gbs": 8,
                       "dispatcher": "deepep"})",
                   5, 200}),
    [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace acplan::costmodel
