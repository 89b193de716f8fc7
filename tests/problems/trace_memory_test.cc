#include "problems/plan/trace_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "graph/base/input_error.h"

namespace acplan::problems {
namespace {

using graph::Simulation;
using graph::StorageCategory;
using graph::Trace;
using testing::ElementsAre;
using testing::HasSubstr;

// Two blocks, ten operators: forward 0 to 3, backward 4 to 7 (the second block
// first), optimizer step 8 and 9. Storages: the root's parameter, one of each
// block, a gradient of each block, an activation, optimizer state.
Trace TwoBlocks() {
  Trace trace;
  trace.forward_end = 4;
  trace.backward_end = 8;
  trace.operator_names = {"op"};
  const auto add_module = [&](const char* fqn, int32_t parameter) {
    trace.modules.push_back({.fqn = fqn,
                             .class_name = "M",
                             .parameters = {parameter},
                             .buffers = {}});
  };
  add_module("m", 0);
  add_module("m.a", 1);
  add_module("m.b", 2);
  const auto add_call = [&](graph::ModuleId module, graph::Time start, graph::Time end,
                            graph::Time backward_start, graph::Time backward_end) {
    trace.calls.push_back({.module = module,
                           .parent = module == 0 ? -1 : 0,
                           .start = start,
                           .end = end,
                           .inputs = {},
                           .outputs = {},
                           .backward_start = backward_start,
                           .backward_end = backward_end});
  };
  add_call(0, 0, 4, graph::kNever, graph::kNever);
  add_call(1, 0, 2, 6, 8);
  add_call(2, 2, 4, 4, 6);
  trace.storages = {
      {.bytes = 4096, .category = StorageCategory::kParameter},
      {.bytes = 8192, .category = StorageCategory::kParameter},
      {.bytes = 16384, .category = StorageCategory::kParameter},
      {.bytes = 8192, .category = StorageCategory::kGradient, .born = 7},
      {.bytes = 16384, .category = StorageCategory::kGradient, .born = 4},
      {.bytes = 1 << 20, .category = StorageCategory::kActivation, .born = 0},
      {.bytes = 1000, .category = StorageCategory::kOptimizer, .born = 8}};
  for (int k = 0; k < 10; ++k) {
    graph::TraceOperator op;
    op.call = k < 2 ? 1 : k < 4 ? 2 : -1;
    trace.operators.push_back(op);
  }
  trace.operators[7].creates = {3};
  trace.operators[4].creates = {4};
  trace.operators[0].creates = {5};
  trace.operators[8].creates = {6};
  return trace;
}

TEST(TraceMemoryTest, OneRankHasEverything) {
  EXPECT_THAT(BytesOfRank(TwoBlocks(), {.model = MemoryModel::kTrace}),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

// A quarter each: 3/4 of 28,672 bytes of parameters less at all times; of the
// gradients 12,288 less from 4 and 6,144 from 7 on, of 1,000 bytes, which take
// 1,024, 512 from 8 on.
TEST(TraceMemoryTest, RanksShareWhatIsSharded) {
  EXPECT_THAT(
      BytesOfRank(TwoBlocks(), {.model = MemoryModel::kTrace, .world_size = 4}),
      ElementsAre(-21504, -21504, -21504, -21504, -33792, -33792, -33792,
                  -39936, -40448, -40448));
}

// The root's 3,072 are whole until 8. a's 6,144 from 0 to 2, and from 4, when b
// runs backward, to 8; b's 12,288 from 0, when a runs, to 4, and from 4 to 6. A
// gradient is whole until its unit's backward has ended.
TEST(TraceMemoryTest, UnitsAreWholeWhileTheyRun) {
  EXPECT_THAT(
      BytesOfRank(TwoBlocks(), {.model = MemoryModel::kTrace,
                                .world_size = 4,
                                .fsdp_units = {"m.a", "m.b"}}),
      ElementsAre(0, 0, -6144, -6144, 0, 0, -24576, -24576, -40448, -40448));
}

TEST(TraceMemoryTest, UnknownUnitsAreRefused) {
  try {
    BytesOfRank(
        TwoBlocks(),
        {.model = MemoryModel::kTrace, .world_size = 2, .fsdp_units = {"m.c"}});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("--fsdp-units"));
    EXPECT_THAT(error.what(), HasSubstr("m.c"));
  }
}

// Steps 0, 1, then 0 again for the call, then 2.
TEST(TraceMemoryTest, PeaksAreThoseOfTheRank) {
  Simulation simulation;
  simulation.steps = {{.op = 0}, {.op = 1}, {.op = 0, .redone = 1}, {.op = 2}};
  simulation.live_bytes = {100, 900, 500, 700};
  EXPECT_THAT(TimesOf(simulation), ElementsAre(0, 1, 2, 2));
  const Simulation rank = OnRank(simulation, {0, -800, 50});
  EXPECT_THAT(rank.live_bytes, ElementsAre(100, 100, 550, 750));
  EXPECT_EQ(rank.peak_bytes, 750);
  EXPECT_EQ(rank.peak_step, 3);
}

TEST(TraceMemoryTest, NamesTheModuleThatRuns) {
  const Trace trace = TwoBlocks();
  Simulation simulation;
  simulation.steps = {
      {.op = 1}, {.op = 5}, {.op = 0, .redone = 1}, {.op = 6}, {.op = 9}};
  EXPECT_EQ(ModuleAt(trace, simulation, 0), "m.a");
  EXPECT_EQ(ModuleAt(trace, simulation, 1), "m.b");
  EXPECT_EQ(ModuleAt(trace, simulation, 2), "m.a");
  EXPECT_EQ(ModuleAt(trace, simulation, 3), "m.a");
  EXPECT_EQ(ModuleAt(trace, simulation, 4), "optimizer step");
  EXPECT_EQ(ModuleAt(trace, simulation, -1), "");
}

}  // namespace
}  // namespace acplan::problems
