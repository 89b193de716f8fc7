#include "problems/plan/trace_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "graph/base/input_error.h"
#include "tests/support/trace_ids.h"

namespace acplan::problems {
namespace {

using namespace graph::trace_ids;

using graph::Simulation;
using graph::StorageCategory;
using graph::Trace;
using testing::ElementsAre;
using testing::HasSubstr;

// Returns two blocks, ten operators: forward 0 to 3, backward 4 to 7 (the
// second block first), optimizer step 8 and 9. Storages: the root's parameter,
// one of each block, a gradient of each block, an activation, optimizer state.
Trace TwoBlocks() {
  Trace trace;
  trace.forward_end = 4;
  trace.backward_end = 8;
  trace.operator_names = {"op"};
  const auto add_module = [&](const char* fqn, graph::StorageId parameter) {
    trace.modules.push_back({.fqn = fqn,
                             .class_name = "M",
                             .parameters = {parameter},
                             .buffers = {}});
  };
  add_module("m", 0_s);
  add_module("m.a", 1_s);
  add_module("m.b", 2_s);
  const auto add_call = [&](graph::ModuleId module, graph::Time start,
                            graph::Time end, graph::Time backward_start,
                            graph::Time backward_end) {
    trace.calls.push_back({.module = module,
                           .parent = module == 0_module ? graph::kNone : 0_call,
                           .start = start,
                           .end = end,
                           .inputs = {},
                           .outputs = {},
                           .backward_start = backward_start,
                           .backward_end = backward_end});
  };
  add_call(0_module, 0, 4, graph::kNever, graph::kNever);
  add_call(1_module, 0, 2, 6, 8);
  add_call(2_module, 2, 4, 4, 6);
  trace.storages = {
      {.bytes = 4096, .category = StorageCategory::kParameter},
      {.bytes = 8192, .category = StorageCategory::kParameter},
      {.bytes = 16384, .category = StorageCategory::kParameter},
      {.bytes = 8192, .category = StorageCategory::kGradient, .born = 7_op},
      {.bytes = 16384, .category = StorageCategory::kGradient, .born = 4_op},
      {.bytes = 1 << 20,
       .category = StorageCategory::kActivation,
       .born = 0_op},
      {.bytes = 1000, .category = StorageCategory::kOptimizer, .born = 8_op}};
  for (int k = 0; k < 10; ++k) {
    graph::TraceOperator op;
    op.call = k < 2 ? 1_call : k < 4 ? 2_call : graph::kNone;
    trace.operators.push_back(op);
  }
  trace.operators[7_op].creates = {3_s};
  trace.operators[4_op].creates = {4_s};
  trace.operators[0_op].creates = {5_s};
  trace.operators[8_op].creates = {6_s};
  return trace;
}

TEST(TraceMemoryTest, OneRankHasEverything) {
  EXPECT_THAT(BytesOfRank(TwoBlocks(), {.model = MemoryModel::kTrace}),
              ElementsAre(0, 0, 0, 0, 0, 0, 0, 0, 0, 0));
}

// A rank has a quarter of each. So it has 3/4 of 28,672 bytes of parameters
// less at all times, 12,288 bytes of gradients less from 4 on and 6,144 from 7
// on, and 512 less of the optimizer state's 1,000 bytes, which take 1,024, from
// 8 on.
TEST(TraceMemoryTest, RanksShareWhatIsSharded) {
  EXPECT_THAT(
      BytesOfRank(TwoBlocks(), {.model = MemoryModel::kTrace, .world_size = 4}),
      ElementsAre(-21504, -21504, -21504, -21504, -33792, -33792, -33792,
                  -39936, -40448, -40448));
}

// The root's 3,072 bytes are whole until 8. a's 6,144 are whole from 0 to 2,
// and from 4, when b runs backward, to 8; b's 12,288 from 0, when a runs, to 4,
// and from 4 to 6. A gradient is whole until its unit's backward has ended.
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
  simulation.steps = {
      {.op = 0_op}, {.op = 1_op}, {.op = 0_op, .redone = 1_call}, {.op = 2_op}};
  simulation.live_bytes = {100, 900, 500, 700};
  EXPECT_THAT(TimesOf(simulation), ElementsAre(0, 1, 2, 2));
  const Simulation rank = OnRank(simulation, {0, -800, 50});
  EXPECT_THAT(rank.live_bytes, ElementsAre(100, 100, 550, 750));
  EXPECT_EQ(rank.peak_bytes, 750);
  EXPECT_EQ(rank.peak_step, 3_step);
}

TEST(TraceMemoryTest, NamesTheModuleThatRuns) {
  const Trace trace = TwoBlocks();
  Simulation simulation;
  simulation.steps = {{.op = 1_op},
                      {.op = 5_op},
                      {.op = 0_op, .redone = 1_call},
                      {.op = 6_op},
                      {.op = 9_op}};
  EXPECT_EQ(ModuleAt(trace, simulation, 0_step), "m.a");
  EXPECT_EQ(ModuleAt(trace, simulation, 1_step), "m.b");
  EXPECT_EQ(ModuleAt(trace, simulation, 2_step), "m.a");
  EXPECT_EQ(ModuleAt(trace, simulation, 3_step), "m.a");
  EXPECT_EQ(ModuleAt(trace, simulation, 4_step), "optimizer step");
  EXPECT_EQ(ModuleAt(trace, simulation, graph::kNone), "");
}

}  // namespace
}  // namespace acplan::problems
