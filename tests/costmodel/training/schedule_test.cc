#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "costmodel/training/layer/operation_times.h"
#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/strategy/layout_text.h"
#include "costmodel/training/strategy/pipeline_schedule.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/step_time.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

// Returns Llama 3 8B on 64 H100, a pipeline of four.
TrainingJob Piped() {
  TrainingJob job = Llama8B();
  job.strategy.gpus = 64;
  job.strategy.global_batch = 512;
  job.strategy.pipeline = 4;
  return job;
}

// The operations that a stage may run, in order of arrival.
struct SimulatedStage {
  double free = 0;  // when the operation that it began ends
  std::vector<double> forward_ready = {};
  std::vector<double> backward_ready = {};
  size_t forwards = 0;
  size_t backwards = 0;
  size_t weights = 0;
};

struct SimulatedTimes {
  double forward = 1;
  double backward = 1;
  double weights = 1;
};

// Simulates ZB-H1, event by event: a stage with at most p - i microbatches in
// flight runs the backward pass that is ready, else a forward pass, else, if it
// would wait, gradients of weights. Returns the time when all have ended.
double SimulateZeroBubble(size_t stages, size_t microbatches,
                          const SimulatedTimes& times) {
  std::vector<SimulatedStage> all(stages);
  all[0].forward_ready.assign(microbatches, 0.0);
  size_t remaining_operations = 3 * stages * microbatches;
  double end = 0;
  while (remaining_operations > 0) {
    // The operation that may begin first; among several, the one that a stage
    // prefers.
    size_t stage = 0;
    int kind = -1;
    double begin = 0;
    for (size_t i = 0; i < stages; ++i) {
      const SimulatedStage& s = all[i];
      const auto offer = [&](int what, double ready) {
        const double when = std::max(s.free, ready);
        if (kind >= 0 && when >= begin) return;
        stage = i;
        kind = what;
        begin = when;
      };
      if (s.backwards < s.backward_ready.size()) {
        offer(1, s.backward_ready[s.backwards]);
      }
      if (s.forwards < s.forward_ready.size() &&
          s.forwards - s.backwards < stages - i) {
        offer(0, s.forward_ready[s.forwards]);
      }
      if (s.weights < s.backwards) offer(2, s.free);
    }
    SimulatedStage& s = all[stage];
    const double lasts = kind == 0   ? times.forward
                         : kind == 1 ? times.backward
                                     : times.weights;
    s.free = begin + lasts;
    end = std::max(end, s.free);
    --remaining_operations;
    if (kind == 2) ++s.weights;
    if (kind == 0) {
      ++s.forwards;
      (stage + 1 < stages ? all[stage + 1].forward_ready : s.backward_ready)
          .push_back(s.free);
    }
    if (kind == 1) {
      ++s.backwards;
      if (stage > 0) all[stage - 1].backward_ready.push_back(s.free);
    }
  }
  return end;
}

double Formula(PipelineSchedule schedule, int64_t stages,
               const SimulatedTimes& t) {
  const TrainingStrategy strategy{.pipeline = stages, .schedule = schedule};
  return BubbleSeconds(strategy, {{.total = t.forward + t.backward + t.weights,
                                   .backward = t.backward + t.weights,
                                   .weights = t.weights,
                                   .count = static_cast<double>(stages)}});
}

TEST(PipelineSchedule, BubbleOfZeroBubbleIsThatOfItsEvents) {
  for (const size_t stages : {2, 3, 4, 8}) {
    const SimulatedTimes times;
    const double busy = 3.0 * 24;
    EXPECT_DOUBLE_EQ(SimulateZeroBubble(stages, 24, times) - busy,
                     Formula(PipelineSchedule::kZeroBubble,
                             static_cast<int64_t>(stages), times))
        << stages;
  }
}

TEST(PipelineSchedule, FillingTheBubbleNeverMakesItLonger) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> length(.5, 2);
  for (int i = 0; i < 500; ++i) {
    const SimulatedTimes t{length(random), length(random), length(random)};
    const int64_t stages = 2 * (1 + random() % 8);
    const double plain =
        Formula(PipelineSchedule::kOneForwardOneBackward, stages, t);
    const double h1 = Formula(PipelineSchedule::kZeroBubble, stages, t);
    const double v = Formula(PipelineSchedule::kZeroBubbleV, stages, t);
    const double dual = Formula(PipelineSchedule::kDualPipe, stages, t);
    EXPECT_LE(h1, plain);
    EXPECT_LE(v, h1);
    EXPECT_LE(dual, plain);
    EXPECT_GE(std::min(v, dual), 0);
  }
}

// The table of Qi et al. 2024b: bubbles of p / 2 and 2 p / 3 of a microbatch,
// activations of (p + 2) / 2 and (p + 4) / 3 microbatches.
TEST(PipelineSchedule, VSchedulesPayForMemoryWithTime) {
  const std::vector<ScheduledStages> equal = {
      {.total = 3, .backward = 2, .weights = 1, .count = 8}};
  TrainingStrategy s{.gpus = 8,
                     .global_batch = 64,
                     .microbatch = 1,
                     .pipeline = 8,
                     .chunks = 2,
                     .schedule = PipelineSchedule::kHalfV};
  EXPECT_DOUBLE_EQ(BubbleSeconds(s, equal), 7 * 3 / 2.0);
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(MicrobatchesInFlight(s, i), 5);
  s.schedule = PipelineSchedule::kMinV;
  EXPECT_DOUBLE_EQ(BubbleSeconds(s, equal), 7 * 3 * 2 / 3.0);
  EXPECT_EQ(MicrobatchesInFlight(s, 3), 4);
  // Turns of 1.5 in place of 1, three in each of 64 passes.
  const std::vector<ScheduledStages> uneven = {
      {.total = 3, .backward = 2, .weights = .5, .count = 8}};
  EXPECT_DOUBLE_EQ(BubbleSeconds(s, uneven), 14 + 64 * 1.5);
  s.schedule = PipelineSchedule::kZeroBubbleV;
  EXPECT_EQ(MicrobatchesInFlight(s, 3), 8);
}

// Table 2 of the DeepSeek-V3 report, F = 1, B = 2 of which W = 1, both at once
// 3: (PP / 2 - 1) (3 + 2 - 3).
// The lengths are those of the schedules that the generator of the papers' authors finds
// (v_auto_schedule.py in sail-sg/zero-bubble-pipeline-parallelism) for the passes of a chunk
// with as many activations as MicrobatchesInFlight has.
TEST(PipelineSchedule, VSchedulesTakeAsLongAsThoseOfTheirAuthors) {
  struct KnownLength {
    int64_t stages, microbatches;
    double forward, backward, weights, half_length, least_length;
  };
  constexpr KnownLength kKnown[] = {
      {4, 12, 1, 1, 1, 77, 83},        {4, 12, 10, 12, 8, 796, 956},
      {4, 12, 10, 10, 8, 732, 824},    {4, 12, 10, 14, 10, 898, 1094},
      {4, 12, 10, 20, 10, 1100, 1510}, {8, 24, 1, 1, 1, 161, 167},
      {8, 24, 10, 12, 8, 1670, 1924},  {8, 24, 10, 10, 8, 1534, 1656},
  };
  for (const KnownLength& run : kKnown) {
    TrainingStrategy s = Piped().strategy;
    s.gpus = s.pipeline = run.stages;
    s.chunks = 2;
    s.global_batch = run.microbatches;
    const double total = 2 * (run.forward + run.backward + run.weights);
    const std::vector<ScheduledStages> stages = {
        {.total = total,
         .backward = 2 * (run.backward + run.weights),
         .weights = 2 * run.weights,
         .count = static_cast<double>(run.stages)}};
    const auto length = [&](PipelineSchedule schedule) {
      s.schedule = schedule;
      return static_cast<double>(run.microbatches) * total +
             BubbleSeconds(s, stages);
    };
    EXPECT_NEAR(length(PipelineSchedule::kHalfV) / run.half_length, 1.02, .04);
    EXPECT_NEAR(length(PipelineSchedule::kMinV) / run.least_length, 1.03, .04);
  }
}

TEST(PipelineSchedule, BubbleOfDualPipeIsThatOfItsTable) {
  // A stage there has one part of the model in each direction.
  const TrainingStrategy strategy{.pipeline = 8,
                                  .schedule = PipelineSchedule::kDualPipe};
  const double bubble = BubbleSeconds(
      strategy, {{.total = 6, .backward = 4, .weights = 2, .count = 8}});
  EXPECT_DOUBLE_EQ(bubble, 3 * (3 + 2 - 3));
}

TEST(PipelineSchedule, ZeroBubbleVEndsWhereItBegins) {
  TrainingJob job = Piped();
  job.strategy.schedule = PipelineSchedule::kZeroBubbleV;
  job.strategy.chunks = 2;
  const std::vector<StageContent> stages = DivideLayers(job);
  ASSERT_EQ(stages.size(), 4U);
  EXPECT_TRUE(stages[0].has_embedding);
  EXPECT_TRUE(stages[0].has_logits);
  for (const StageContent& stage : stages) EXPECT_EQ(stage.Layers(), 8);
  // All stages hold as many microbatches.
  const StepMemory memory = PredictStepMemory(job);
  EXPECT_DOUBLE_EQ(memory.stages[1].activations, memory.stages[3].activations);
}

TEST(PipelineSchedule, DualPipeHoldsTwoPartsAndAsMuchWork) {
  TrainingJob job = Piped();
  const StepTime plain = PredictStepTime(job);
  const StepMemory once = PredictStepMemory(job);
  job.strategy.schedule = PipelineSchedule::kDualPipe;
  const StepTime dual = PredictStepTime(job);
  const StepMemory twice = PredictStepMemory(job);
  EXPECT_LT(dual.bubble, plain.bubble);
  // Stages of both ends are averaged: the slowest of one direction is less
  // alone.
  EXPECT_LE(dual.compute, plain.compute * (1 + 1e-9));
  EXPECT_NEAR(twice.stages[1].parameters,
              once.stages[1].parameters + once.stages[2].parameters, 1);
  EXPECT_NEAR(twice.stages[1].activations / once.stages[1].activations, 5 / 3.0,
              1e-9);
}

TEST(StageLayout, FirstAndLastStageHaveTheLayersThatAreTold) {
  TrainingJob job = Piped();
  job.strategy.first_layers = 6;
  job.strategy.last_layers = 4;
  const std::vector<StageContent> stages = DivideLayers(job);
  const std::vector<int64_t> expected = {6, 11, 11, 4};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(stages[i].Layers(), expected[i]);
  EXPECT_TRUE(stages[0].has_embedding);
  EXPECT_TRUE(stages[3].has_logits);
  job.strategy.last_layers = 0;
  job.strategy.first_layers = 2;
  job.strategy.chunks = 2;
  const std::vector<StageContent> halves = DivideLayers(job);
  EXPECT_EQ(halves[0].Layers(), 2);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(halves[i].Layers(), 10);
}

TEST(StageLayout, EmbeddingAndLogitsCountAsLayersWhereTold) {
  TrainingJob job = Piped();
  job.shape.layers = 31;
  job.strategy.counts_embedding = true;
  const std::vector<StageContent> stages = DivideLayers(job);
  EXPECT_EQ(stages[0].Layers(), 7);
  EXPECT_EQ(stages[3].Layers(), 8);
  EXPECT_TRUE(stages[3].has_logits);
}

// Megatron-LM's example of DeepSeek-V3: PP 16, two chunks a stage.
TEST(Layout, IsThatOfMegatronsText) {
  ModelShape shape = Llama8B().shape;
  shape.layers = 61;
  shape.mtp_layers = 1;
  const auto counts = ParseLayout("Et*3|(tt|)*29,m|L", shape);
  ASSERT_TRUE(counts.has_value());
  ASSERT_EQ(counts->size(), 32U);
  EXPECT_EQ(counts->front(), 4);
  EXPECT_EQ((*counts)[1], 2);
  EXPECT_EQ((*counts)[30], 1);  // the layer of prediction alone
  EXPECT_EQ(counts->back(), 1);
  EXPECT_EQ(ParseLayout(LayoutText(*counts, shape), shape), counts);
  TrainingJob job = Piped();
  job.shape = shape;
  job.strategy.pipeline = 16;
  job.strategy.chunks = 2;
  job.strategy.layout = *counts;
  const std::vector<StageContent> stages = DivideLayers(job);
  EXPECT_EQ(stages[0].Layers(), 3 + 2);
  EXPECT_TRUE(stages[0].has_embedding);
  EXPECT_EQ(stages[14].Layers(), 2 + 1);
  EXPECT_EQ(stages[15].Layers(), 2);
  EXPECT_TRUE(stages[15].has_logits);
  for (const char* wrong : {"", "E", "Et*61m|L|E", "Et*61L", "tE*61mL",
                            "Et*61mLx", "Et*0|L", "E)t*61mL", "E(t*61mL",
                            "Et*61*mL", "Et*-1L", "((((((((((((((((((((((("}) {
    EXPECT_FALSE(ParseLayout(wrong, shape).has_value()) << wrong;
  }
}

// A layout that describes the rule's division gives the same result.
TEST(Layout, SaysWhatRulesSay) {
  TrainingJob job = Piped();
  const double seconds = PredictStepTime(job).Total();
  const double bytes = PredictStepMemory(job).Worst().Total();
  job.strategy.layout = {9, 8, 8, 9};
  EXPECT_EQ(PredictStepTime(job).Total(), seconds);
  EXPECT_EQ(PredictStepMemory(job).Worst().Total(), bytes);
  job.strategy.layout = {8, 9, 9, 8};
  EXPECT_NE(PredictStepTime(job).Total(), seconds);
}

// HSDP: a group's ranks share the states, and each group has all of them.
TEST(HybridSharding, GroupsHoldCopiesAndTogetherAllRanks) {
  TrainingJob job = Piped();
  job.strategy.pipeline = 1;
  job.strategy.zero = 3;
  job.strategy.fsdp = 64;
  const auto optimizer = [&] {
    return PredictStepMemory(job).Worst().optimizer;
  };
  const double sharded = optimizer();
  for (const int64_t copies : {2, 8, 64}) {
    job.strategy.optimizer_copies = copies;
    const DataGroups groups = DenseDataGroups(job.strategy);
    EXPECT_EQ(groups.shards.size * groups.replicas.size, 64);
    EXPECT_EQ(groups.replicas.stride, groups.shards.size);
    EXPECT_NEAR(optimizer() / sharded, static_cast<double>(copies), 1e-9);
  }
}

// Within a group NVLink gathers and scatters; among groups the network adds up.
TEST(HybridSharding, OnlySumsOfGradientsCrossTheNetwork) {
  TrainingJob job = Piped();
  job.strategy.pipeline = 1;
  job.strategy.global_batch = 64;
  job.strategy.overlaps_data = false;
  const auto data = [&](int64_t copies, double network_rate) {
    job.strategy.optimizer_copies = copies;
    job.cluster.network_rate = network_rate;
    job.cluster.stack.network_latency = 0;
    return PredictStepTime(job).data;
  };
  EXPECT_NEAR(data(1, 10e9) / data(1, 20e9), 2, .01);
  // A rank adds up an eighth of the gradients among eight groups: 2 x 7/8 of
  // that, as eight ranks of a node share its rails.
  const double parameters = 8.03e9;
  const double slow = data(8, 10e9);
  const double fast = data(8, 20e9);
  const double rate = 20e9 * job.cluster.stack.network_share;
  const double sums = 2 * 7.0 / 8 * 4 * parameters / 8 / rate;
  EXPECT_NEAR((slow - fast) / sums, 1, .01);
}

// A plan that is best stage by stage is best: no schedule gets faster if a
// stage takes longer.
TEST(Bubble, RisesWithEachStage) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int i = 0; i < 2000; ++i) {
    TrainingJob job = Piped();
    TrainingStrategy& s = job.strategy;
    using enum PipelineSchedule;
    s.schedule = std::vector{kOneForwardOneBackward,
                             kInterleaved,
                             kZeroBubble,
                             kZeroBubbleV,
                             kHalfV,
                             kMinV,
                             kDualPipe}[random() % 7];
    s.chunks = IsVShaped(s.schedule) ? 2 : 1;
    std::vector<ScheduledStages> stages;
    for (int stage = 0; stage < 4; ++stage) {
      const double forward = unit(random);
      const double backward = unit(random);
      const double weights = backward * unit(random);
      stages.push_back({.total = forward + backward,
                        .backward = backward,
                        .weights = weights,
                        .count = 1});
    }
    const auto seconds = [&] {
      return PassesOfStage(s) *
                 std::ranges::max(stages, {}, &ScheduledStages::total).total +
             BubbleSeconds(s, stages);
    };
    const double before = seconds();
    stages[random() % 4].total += unit(random);
    EXPECT_GE(seconds(), before - 1e-12) << i;
  }
}

// A ring hides what attention covers, an all-gather nothing; all-to-all sends
// less than both, as each rank sends its own part once.
TEST(ContextExchange, RingsHideAndAllToAllSendsLess) {
  TrainingJob job = Llama8B();
  job.strategy.context = 4;
  const auto context = [&](ContextExchange exchange, int64_t sequence) {
    job.strategy.context_exchange = exchange;
    job.strategy.sequence = sequence;
    return PredictStepTime(job).exposed.context;
  };
  using enum ContextExchange;
  // Llama's keys and values: 2 x 8 heads of 128 elements of 2 bytes; queries and
  // results four times as many heads each.
  const double rows = 8192;
  const double gathered = 2 * rows * 16 * 128;
  const double rate =
      job.cluster.gpu.nvlink_rate * job.cluster.gpu.nvlink_share;
  const double latency = job.cluster.kernels.nvlink_latency;
  const double microbatches = 64.0 / 2;
  const double once = .75 * gathered / rate + 2 * latency;
  EXPECT_NEAR(context(kAllGather, 8192) / (microbatches * 32 * 3 * once), 1,
              1e-6);
  const double sent_bytes = 2 * rows / 4 * 128 * (16 + 64);
  const double exchange = .75 * sent_bytes / rate + latency;
  EXPECT_NEAR(context(kAllToAll, 8192) / (microbatches * 32 * 2 * exchange), 1,
              1e-6);
  EXPECT_NEAR(context(kRing, 65536) / context(kAllGather, 65536), .1, 1e-6);
}

// The stage waits for the part of a copy that takes longer than the pass beside
// it.
TEST(Offload, IsExposedBeyondThePassBesideIt) {
  TrainingJob job = Llama8B();
  const double none = PredictStepTime(job).Total();
  const double kept_bytes = SavedBytesOfLayer(job, false);
  job.strategy.offloaded_layers = 16;
  job.cluster.gpu.host_rate = 1e15;
  EXPECT_DOUBLE_EQ(PredictStepTime(job).Total(), none);
  job.cluster.gpu.host_rate = 1e9;
  const double copy =
      16 * kept_bytes / (.8 * 1e9);  // much longer than any pass
  const StepTime slow = PredictStepTime(job);
  const double microbatches = 8;
  EXPECT_LT(slow.exposed.offload, 2 * copy * microbatches);
  EXPECT_GT(slow.exposed.offload, 2 * copy * microbatches - none);
  EXPECT_NEAR(slow.Total() - none, slow.exposed.offload, 1e-9);
  job.strategy.offloaded_layers = 17;
  EXPECT_NEAR(PredictStepTime(job).Total() - slow.Total(),
              2 * kept_bytes / (.8 * 1e9) * microbatches, 1e-6);
}

// A model without experts pays nothing for a group of ranks with the same
// experts.
TEST(DataParallelism, EmptyTensorsAreNotSent) {
  const TrainingJob job = Piped();
  EXPECT_EQ(CollectiveSeconds(CollectiveKind::kAllReduce, 0, {64, 1}, job), 0);
  EXPECT_GT(CollectiveSeconds(CollectiveKind::kAllReduce, 8, {64, 1}, job), 0);
}

}  // namespace
}  // namespace acplan::costmodel
