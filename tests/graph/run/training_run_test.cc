#include "graph/run/training_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph/trace/allocation.h"
#include "graph/trace/simulation.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

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
    trace_.modules = {{"N", "N", {}, {}}, {"N.a", "L", {1, 2}, {}}};
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
    Operator(0, {4}, {0, 1, 2});
    Operator(1, {5}, {4});
    Operator(1, {}, {});
    Operator(0, {7}, {4});
    Operator(1, {10}, {});
    Operator(1, {}, {});
  }

  void Add(int64_t bytes, StorageCategory category, int32_t born,
           int32_t freed) {
    trace_.storages.push_back({.bytes = bytes,
                               .category = category,
                               .born = born,
                               .freed = freed,
                               .scope_end = freed});
  }

  void Operator(int32_t name, std::vector<int32_t> creates,
                std::vector<int32_t> reads) {
    TraceOperator op;
    op.name = name;
    op.creates = op.outputs = std::move(creates);
    op.reads = std::move(reads);
    trace_.operators.push_back(op);
  }

  // Returns the bytes of each request of an iteration (-1: before the first),
  // those that are freed with a minus.
  std::vector<int64_t> Requests(int32_t iteration,
                                const RunOptions& options = {}) const {
    const TrainingRun run =
        MakeTrainingRun(trace_, Simulator(trace_).Live({}), options);
    std::vector<int64_t> requests;
    for (size_t k = 0; k < run.events.events.size(); ++k) {
      if (run.moments[k].iteration != iteration) continue;
      const AllocatorEvent& event = run.events.events[k];
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

TEST_F(RunOfLayer, MayKeepItsInputs) {
  EXPECT_THAT(Requests(1, {.renews_inputs = false}),
              ElementsAre(50, -60, 60, -50, 70, 100, -100, -70));
}

// A module comes after those inside of it, its parameters before its buffers.
TEST_F(RunOfLayer, PutsModulesOnTheDeviceAsModuleToDoes) {
  Add(1, kParameter, -1, kNever);  // 11: of the root
  Add(2, kBuffer, -1, kNever);     // 12: of the root
  Add(3, kParameter, -1, kNever);  // 13: of N.ab, beside N.a
  Add(4, kParameter, -1, kNever);  // 14: of N.a.b
  trace_.modules[0].parameters = {11};
  trace_.modules[0].buffers = {12};
  trace_.modules.insert(trace_.modules.begin() + 2,
                        {{"N.a.b", "L", {14, 1}, {}}, {"N.ab", "L", {13}, {}}});
  EXPECT_THAT(Requests(-1), ElementsAre(4, 20, 30, 3, 1, 2));
}

// The first microbatch's tensor becomes the gradient, to which the others add.
TEST_F(RunOfLayer, AccumulatesGradients) {
  trace_.microbatches = 3;
  trace_.storages[7] = {.bytes = 70, .category = kGradient, .freed = 6};
  Add(70, kTemporary, 3, 4);  // 11: the gradient of the microbatch
  trace_.operators[3].creates = trace_.operators[3].outputs = {11};
  // The sum is an operator of its own.
  TraceOperator add = trace_.operators[2];
  add.reads = {7, 11};
  add.mutates = {7};
  trace_.operators.insert(trace_.operators.begin() + 4, add);
  trace_.backward_end = 5;
  for (TraceStorage& storage : trace_.storages) {
    if (storage.born >= 4) ++storage.born;
    if (storage.freed >= 5 && storage.freed != kNever) ++storage.freed;
  }
  trace_.storages[11].freed = 5;
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
    std::map<int32_t, int64_t> live_at;  // a step of the third iteration
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
      if (step < 0 || step >= std::ssize(simulation->steps)) continue;
      EXPECT_EQ(bytes, simulation->live_bytes[step]) << "step " << step;
    }
  }
  EXPECT_GT(with_units, Enough(200));
}

}  // namespace
}  // namespace acplan::graph
