#include "graph/run/training_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/run/evaluation.h"
#include "graph/run/lasting_storages.h"
#include "graph/trace/allocation.h"
#include "graph/trace/simulation.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::Repetitions;
using ::testing::ElementsAre;
using enum StorageCategory;

// A linear layer, its loss, backward and update. Forward keeps the loss until the
// next step's replaces it. Sizes tell the storages apart.
//
//   operator 0: a matrix product, 1: the loss, 2: backward, 3: a product of
//   backward, 4 and 5: the update
class RunOfLayer : public ::testing::Test {
 protected:
  RunOfLayer() {
    trace_.modules = {{"N", "N", {}, {}}, {"N.a", "L", {1_s, 2_s}, {}}};
    trace_.operator_names = {"aten.addmm.default", "op"};
    trace_.forward_end = 2;
    trace_.backward_end = 4;
    Add(10, kInput, -1, kNever);      // 0
    Add(20, kParameter, -1, kNever);  // 1
    Add(30, kParameter, -1, kNever);  // 2
    Add(40, kOptimizer, -1, kNever);  // 3
    Add(50, kActivation, 0, 3);       // 4: the product
    Add(60, kActivation, 1, kNever);  // 5: the loss
    Add(60, kActivation, -1, 1);      // 6: the loss before
    Add(70, kGradient, 3, 6);         // 7
    Add(80, kBuffer, -1, kNever);     // 8: of a library, for forward
    Add(90, kBuffer, -1, kNever);     // 9: for backward
    Add(100, kTemporary, 4, 5);       // 10: of the update
    Operator(0_name, {4_s}, {0_s, 1_s, 2_s});
    Operator(1_name, {5_s}, {4_s});
    Operator(1_name, {}, {});
    Operator(0_name, {7_s}, {4_s});
    Operator(1_name, {10_s}, {});
    Operator(1_name, {}, {});
  }

  // `born`: an operator, -1: none.
  void Add(int64_t bytes, StorageCategory category, int32_t born, Time freed) {
    trace_.storages.push_back({.bytes = bytes,
                               .category = category,
                               .born = IdAt<OperatorId>(born),
                               .freed = freed,
                               .scope_end = freed});
  }

  void Operator(OperatorNameId name, std::vector<StorageId> creates,
                std::vector<StorageId> reads) {
    TraceOperator op;
    op.name = name;
    op.creates = op.outputs = std::move(creates);
    op.reads = std::move(reads);
    trace_.operators.push_back(op);
  }

  // Returns the bytes of each request of an iteration (-1: before the first),
  // those that are freed with a minus; 0: the cache is emptied.
  std::vector<int64_t> Requests(int32_t iteration,
                                const RunOptions& options = {}) const {
    const TrainingRun run =
        MakeTrainingRun(trace_, Simulator(trace_).Live({}), options);
    std::vector<int64_t> requests;
    for (size_t k = 0; k < run.events.events.size(); ++k) {
      if (run.moments[k].iteration != iteration) continue;
      const AllocatorEvent& event = run.events.events[k];
      if (event.kind == AllocatorEvent::Kind::kEmptyCache) {
        requests.push_back(0);
        continue;
      }
      const bool is_new = event.kind == AllocatorEvent::Kind::kAllocate;
      const int64_t bytes =
          trace_.storages[run.storages[static_cast<size_t>(event.block)]].bytes;
      EXPECT_TRUE(!is_new || bytes == event.bytes);
      requests.push_back(is_new ? bytes : -bytes);
    }
    return requests;
  }

  Trace trace_;
};

TEST_F(RunOfLayer, PutsTheModelOnTheDeviceFirst) {
  EXPECT_THAT(Requests(-1), ElementsAre(20, 30));
}

TEST_F(RunOfLayer, MakesStateAndMemoryOfLibrariesInTheFirstIteration) {
  EXPECT_THAT(Requests(0),
              ElementsAre(10, 50, 80, 60, -50, 70, 90, 40, 100, -100, -70));
}

TEST_F(RunOfLayer, FreesWhatTheIterationBeforeLeft) {
  const std::vector<int64_t> later = Requests(1);
  EXPECT_THAT(later,
              ElementsAre(10, -10, 50, -60, 60, -50, 70, 100, -100, -70));
  EXPECT_EQ(Requests(2), later);
}

TEST_F(RunOfLayer, MakesTheStateFirst) {
  EXPECT_THAT(Requests(-1, {.makes_state_first = true}),
              ElementsAre(20, 30, 40));
  EXPECT_THAT(Requests(0, {.makes_state_first = true}),
              ElementsAre(10, 50, 80, 60, -50, 70, 90, 100, -100, -70));
}

TEST_F(RunOfLayer, AllocatesOnTheStreamOfTheStorage) {
  trace_.storages[5_s].stream = 3;
  const TrainingRun run =
      MakeTrainingRun(trace_, Simulator(trace_).Live({}), {});
  for (const AllocatorEvent& event : run.events.events) {
    if (event.kind != AllocatorEvent::Kind::kAllocate) continue;
    const StorageId storage = run.storages[static_cast<size_t>(event.block)];
    EXPECT_EQ(event.stream, storage == 5_s ? 3 : 0);
  }
}

TEST_F(RunOfLayer, MayPutTheLargestOnTheDeviceFirst) {
  EXPECT_THAT(Requests(-1, {.puts_largest_first = true}), ElementsAre(30, 20));
  EXPECT_EQ(Requests(0, {.puts_largest_first = true}), Requests(0));
}

TEST_F(RunOfLayer, EmptiesTheCacheBetweenPhases) {
  const RunOptions after_forward{.empties_cache_after_forward = true};
  EXPECT_THAT(Requests(0, after_forward),
              ElementsAre(10, 50, 80, 60, 0, -50, 70, 90, 40, 100, -100, -70));
  const RunOptions before_update{.empties_cache_before_update = true};
  EXPECT_THAT(Requests(0, before_update),
              ElementsAre(10, 50, 80, 60, -50, 70, 90, 0, 40, 100, -100, -70));
  EXPECT_THAT(Requests(1, before_update),
              ElementsAre(10, -10, 50, -60, 60, -50, 70, 0, 100, -100, -70));
  const RunOptions once{.empties_cache_before_first_update = true};
  EXPECT_EQ(Requests(0, once), Requests(0, before_update));
  EXPECT_EQ(Requests(1, once), Requests(1));
}

TEST_F(RunOfLayer, MayKeepItsInputs) {
  EXPECT_THAT(Requests(1, {.renews_inputs = false}),
              ElementsAre(50, -60, 60, -50, 70, 100, -100, -70));
}

// Clipping comes before optimizer.step, which makes the state; averages of weights are
// made with the model, a GradScaler's tensors before the scale is used.
TEST_F(RunOfLayer, MakesStateWhenTheOptimizerSteps) {
  trace_.operator_names = {"aten.addmm.default", "op",
                           "profiler._record_function_enter_new.default",
                           "profiler._record_function_exit._RecordFunction"};
  Add(110, kOptimizer, -1, kNever);  // 11: an average of weights
  Add(120, kOptimizer, -1, kNever);  // 12: the scale
  Add(130, kOptimizer, -1, kNever);  // 13: the tracker of its growth
  trace_.operators[1_op].reads = {4_s, 12_s};
  // Operator 4 clips, 5 to 7 are the step, 8 averages.
  Operator(3_name, {}, {});
  Operator(1_name, {}, {11_s});
  trace_.operators[5_op].name = 2_name;
  std::vector<TraceOperator> operators = trace_.operators.values();
  TraceOperator update = operators[2];
  update.reads = {3_s};
  operators.insert(operators.begin() + 6, update);
  trace_.operators = IndexedVector<OperatorId, TraceOperator>(operators);
  EXPECT_THAT(Requests(-1), ElementsAre(20, 30, 110));
  EXPECT_THAT(Requests(0), ElementsAre(10, 50, 80, 120, 130, 60, -50, 70, 90,
                                       100, -100, 40, -70));
}

// A module comes after those inside of it, its parameters before its buffers.
TEST_F(RunOfLayer, PutsModulesOnTheDeviceAsModuleToDoes) {
  Add(1, kParameter, -1, kNever);  // 11: of the root
  Add(2, kBuffer, -1, kNever);     // 12: of the root
  Add(3, kParameter, -1, kNever);  // 13: of N.ab, beside N.a
  Add(4, kParameter, -1, kNever);  // 14: of N.a.b
  trace_.modules[0_module].parameters = {11_s};
  trace_.modules[0_module].buffers = {12_s};
  trace_.modules.push_back({"N.a.b", "L", {14_s, 1_s}, {}});
  trace_.modules.push_back({"N.ab", "L", {13_s}, {}});
  EXPECT_THAT(Requests(-1), ElementsAre(4, 20, 30, 3, 1, 2));
}

// The first microbatch's tensor becomes the gradient, to which the others add.
TEST_F(RunOfLayer, AccumulatesGradients) {
  trace_.microbatches = 3;
  trace_.storages[7_s] = {.bytes = 70, .category = kGradient, .freed = 6};
  Add(70, kTemporary, 3, 4);  // 11: the gradient of the microbatch
  trace_.operators[3_op].creates = trace_.operators[3_op].outputs = {11_s};
  // The sum is an operator of its own.
  TraceOperator sum = trace_.operators[2_op];
  sum.reads = {7_s, 11_s};
  sum.mutates = {7_s};
  std::vector<TraceOperator> operators = trace_.operators.values();
  operators.insert(operators.begin() + 4, sum);
  trace_.operators = IndexedVector<OperatorId, TraceOperator>(operators);
  trace_.backward_end = 5;
  for (TraceStorage& storage : trace_.storages) {
    if (StartOf(storage.born) >= 4) storage.born = Next(storage.born);
    if (storage.freed >= 5 && storage.freed != kNever) ++storage.freed;
  }
  trace_.storages[11_s].freed = 5;
  EXPECT_THAT(Requests(0),
              ElementsAre(10, 50, 80, 60, -50, 70, 90,         // the first
                          10, -10, 50, -60, 60, -50, 70, -70,  // the second
                          10, -10, 50, -60, 60, -50, 70, -70,  // the third
                          40, 100, -100, -70));
  EXPECT_THAT(Requests(1),
              ElementsAre(10, -10, 50, -60, 60, -50, 70,       // the first
                          10, -10, 50, -60, 60, -50, 70, -70,  // the second
                          10, -10, 50, -60, 60, -50, 70, -70,  // the third
                          100, -100, -70));
}

// While an operator of a later iteration runs, the run has what the simulation
// counts, for any plan.
TEST(TrainingRunTest, HasTheBytesOfTheSimulation) {
  std::mt19937 random(7);
  int with_units = 0;
  for (int k = 0; k < Repetitions(400); ++k) {
    SCOPED_TRACE(k);
    const Trace trace = test_support::RandomStep(random, RandomOptions(random));
    std::vector<CheckpointedModule> modules;
    for (const RandomUnit& unit : UnitsByChance(trace, random)) {
      modules.push_back(
          AllOthersRunAgain(unit.module, RandomSaves(unit.length, random)));
    }
    std::optional<Simulation> simulation = Accepted(trace, modules);
    if (!simulation) {
      modules.clear();
      simulation = Accepted(trace, modules);
    }
    with_units += modules.empty() ? 0 : 1;
    const TrainingRun run =
        MakeTrainingRun(trace, Simulator(trace).Live(modules));
    std::vector<int64_t> sizes(run.storages.size(), 0);
    int64_t live = 0;
    std::map<StepId, int64_t> live_at;  // a step of the third iteration
    for (size_t e = 0; e < run.events.events.size(); ++e) {
      const AllocatorEvent& event = run.events.events[e];
      const auto block = static_cast<size_t>(event.block);
      if (event.kind == AllocatorEvent::Kind::kAllocate) {
        ASSERT_EQ(sizes[block], 0);
        sizes[block] = AllocatedBytes(event.bytes);
        live += sizes[block];
      } else {
        ASSERT_GT(sizes[block], 0) << "freed twice";
        live -= std::exchange(sizes[block], 0);
      }
      if (run.moments[e].iteration == 2) live_at[run.moments[e].step] = live;
    }
    for (const auto& [step, bytes] : live_at) {
      if (step == kNone || step >= simulation->steps.end_id()) continue;
      EXPECT_EQ(bytes, simulation->live_bytes[step])
          << "step " << IndexOf(step);
    }
  }
  EXPECT_GT(with_units, Enough(200));
}

// Returns a line for each request; blocks are numbered in their order.
std::vector<std::string> Lines(const TrainingRun& run) {
  std::vector<std::string> lines;
  for (const AllocatorEvent& event : run.events.events) {
    lines.push_back(std::to_string(static_cast<int>(event.kind)) + " " +
                    std::to_string(event.block) + " " +
                    std::to_string(event.bytes));
  }
  return lines;
}

TEST(RunOfShapesTest, OneShapeInOrderRepeatsIt) {
  std::mt19937 random(23);
  for (int k = 0; k < Repetitions(100); ++k) {
    SCOPED_TRACE(k);
    Trace trace = test_support::RandomStep(random, RandomOptions(random));
    trace.microbatches = 1 + k % 3;
    const Trace copy = trace;
    const LivedStep step = Simulator(trace).Live({});
    const std::vector<RunShape> shapes{{.trace = &trace, .step = &step},
                                       {.trace = &copy, .step = &step}};
    std::vector<size_t> order;
    for (int64_t i = 0; i < 3 * trace.microbatches; ++i) {
      order.push_back(k % 2 == 0 ? 0 : random() % 2);
    }
    ASSERT_EQ(ModelDifference(trace, copy), std::nullopt);
    const TrainingRun in_order = MakeTrainingRun(shapes, order);
    EXPECT_EQ(Lines(in_order),
              Lines(MakeTrainingRun(trace, step, {.iterations = 3})));
    EXPECT_EQ(in_order.iteration_ends.size(), order.size());
  }
}

TEST_F(RunOfLayer, StepsOfAnotherShapeFollow) {
  Trace longer = trace_;
  for (const StorageId s : {0_s, 4_s, 5_s, 6_s}) longer.storages[s].bytes += 1;
  const LivedStep step = Simulator(trace_).Live({});
  const LivedStep of_longer = Simulator(longer).Live({});
  const TrainingRun run =
      MakeTrainingRun({{.trace = &trace_, .step = &step},
                       {.trace = &longer, .step = &of_longer}},
                      {0, 1});
  std::vector<int64_t> sizes(run.storages.size());
  std::vector<int64_t> second;
  for (size_t k = 0; k < run.events.events.size(); ++k) {
    const AllocatorEvent& event = run.events.events[k];
    const bool is_new = event.kind == AllocatorEvent::Kind::kAllocate;
    int64_t& bytes = sizes[static_cast<size_t>(event.block)];
    if (is_new) bytes = event.bytes;
    if (run.moments[k].iteration != 1) continue;
    EXPECT_EQ(run.moments[k].shape, 1);
    second.push_back(is_new ? bytes : -bytes);
  }
  // The shorter input and the shorter loss go; state and libraries are there.
  EXPECT_THAT(second,
              ElementsAre(11, -10, 51, -60, 61, -51, 70, 100, -100, -70));
}

TEST_F(RunOfLayer, EvaluationKeepsWhatTrainingLeft) {
  const LivedStep step = Simulator(trace_).Live({});
  const LivedStep evaluation = EvaluationOf(trace_);
  const TrainingRun run = MakeTrainingRun(
      {{.trace = &trace_, .step = &step},
       {.trace = &trace_, .step = &evaluation, .is_evaluation = true}},
      {0, 1, 1, 0});
  std::map<int32_t, std::vector<int64_t>> by_step;
  for (size_t k = 0; k < run.events.events.size(); ++k) {
    const AllocatorEvent& event = run.events.events[k];
    const int64_t bytes =
        trace_.storages[run.storages[static_cast<size_t>(event.block)]].bytes;
    by_step[run.moments[k].iteration].push_back(
        event.kind == AllocatorEvent::Kind::kAllocate ? bytes : -bytes);
  }
  EXPECT_THAT(by_step[1], ElementsAre(10, 50, 60, -50, -60));
  EXPECT_THAT(by_step[2], ElementsAre(10, -10, 50, 60, -50, -60));
  EXPECT_THAT(by_step[3],
              ElementsAre(-10, 10, -10, 50, -60, 60, -50, 70, 100, -100, -70));
}

TEST_F(RunOfLayer, EvaluationRunsNoDropout) {
  trace_.operator_names.push_back("aten.native_dropout.default");
  trace_.operators[1_op].name = 2_name;
  const TrainingRun run = [&] {
    const LivedStep evaluation = EvaluationOf(trace_);
    return MakeTrainingRun(
        {{.trace = &trace_, .step = &evaluation, .is_evaluation = true}}, {0});
  }();
  std::vector<int64_t> sizes;
  for (size_t k = 0; k < run.events.events.size(); ++k) {
    if (run.moments[k].iteration == 0 && run.events.events[k].bytes > 0) {
      sizes.push_back(run.events.events[k].bytes);
    }
  }
  EXPECT_THAT(sizes, ElementsAre(10, 50, 80));
}

TEST_F(RunOfLayer, TracesOfAnotherModelAreNamed) {
  Trace other = trace_;
  EXPECT_EQ(ModelDifference(trace_, other), std::nullopt);
  other.storages[2_s].bytes = 31;
  EXPECT_EQ(ModelDifference(trace_, other),
            "a parameter of 30 bytes is a parameter of 31 bytes in the other");
  other = trace_;
  other.modules[ModuleId{1}].fqn = "N.b";
  EXPECT_EQ(ModelDifference(trace_, other),
            "one has the module N.a where the other has N.b");
  other = trace_;
  other.microbatches = 2;
  EXPECT_EQ(ModelDifference(trace_, other),
            "one has 1 microbatches, the other 2");
}

}  // namespace
}  // namespace acplan::graph
