#include "graph/trace/length_traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "tests/graph/random_units.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Repetitions;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Bytes of the second degree in the length, run-times of the first.
Trace Stretched(Trace trace, int64_t length) {
  for (const StorageId s : trace.storages.ids()) {
    int64_t& bytes = trace.storages[s].bytes;
    const int64_t square = IndexOf(s) % 3 == 0 ? 8 * length * length : 0;
    bytes = 4 * (bytes % 100) * length + square;
  }
  for (TraceOperator& op : trace.operators) {
    op.runtime_ms += 0.5 * static_cast<double>(length);
  }
  trace.peak_bytes.reset();
  return trace;
}

TEST(LengthTracesTest, StepsBetweenTracesAreInterpolated) {
  std::mt19937 random(31);
  for (int k = 0; k < Repetitions(50); ++k) {
    SCOPED_TRACE(k);
    const Trace step = test_support::RandomStep(random, RandomOptions(random));
    std::vector<TraceOfLength> traces;
    for (const int64_t length : {16, 100, 512}) {
      traces.push_back({.length = length,
                        .name = std::to_string(length),
                        .trace = Stretched(step, length)});
    }
    for (const int64_t length : {16, 17, 99, 101, 300, 511}) {
      const Trace expected = Stretched(step, length);
      const Trace trace = TraceAt(traces, length);
      ASSERT_TRUE(AreAlike(expected, trace));
      EXPECT_EQ(trace.storages, expected.storages);
      for (const OperatorId op : trace.operators.ids()) {
        EXPECT_NEAR(trace.operators[op].runtime_ms,
                    expected.operators[op].runtime_ms, 1e-9);
      }
    }
  }
}

// An operator whose workspace comes with longer inputs.
TEST(LengthTracesTest, WorkspacesComeAndGo) {
  Trace trace;
  trace.modules = {{"N", "N", {}, {}}};
  trace.operator_names = {"op"};
  trace.forward_end = trace.backward_end = 2;
  trace.operators.resize(2);
  trace.storages = {{.bytes = 100, .born = 0_op, .freed = 2, .scope_end = 2},
                    {.bytes = 10, .born = 1_op}};
  trace.operators[0_op].creates = trace.operators[0_op].outputs = {0_s};
  trace.operators[1_op].reads = {0_s};
  trace.operators[1_op].creates = trace.operators[1_op].outputs = {1_s};
  Trace longer = trace;
  longer.storages = {{.bytes = 1024, .born = 0_op, .freed = 1, .scope_end = 1},
                     {.bytes = 300, .born = 0_op, .freed = 2, .scope_end = 2},
                     {.bytes = 30, .born = 1_op}};
  longer.operators[0_op].creates = {0_s, 1_s};
  longer.operators[0_op].outputs = {1_s};
  longer.operators[1_op].reads = {1_s};
  longer.operators[1_op].creates = longer.operators[1_op].outputs = {2_s};
  ASSERT_TRUE(AreAlike(trace, longer));
  const Trace between = TraceAt({{.length = 10, .name = "a", .trace = trace},
                                 {.length = 30, .name = "b", .trace = longer}},
                                20);
  ASSERT_EQ(between.storages.size(), 3);
  EXPECT_EQ(between.storages[0_s].bytes, 200);
  EXPECT_EQ(between.storages[1_s].bytes, 20);
  EXPECT_EQ(between.storages[2_s].bytes, 512);
  EXPECT_EQ(between.operators[0_op].creates,
            (std::vector<StorageId>{0_s, 2_s}));
  EXPECT_EQ(between.operators[1_op].reads, std::vector<StorageId>{0_s});
}

TEST(LengthTracesTest, RefusesLengthsOfWhichNothingIsKnown) {
  Trace trace;
  trace.modules = {{"N", "N", {}, {}}};
  Trace other = trace;
  other.operator_names = {"op"};
  other.operators.resize(1);
  const std::vector<TraceOfLength> traces{
      {.length = 8, .name = "8.json", .trace = trace},
      {.length = 16, .name = "16.json", .trace = trace},
      {.length = 32, .name = "32.json", .trace = other}};
  EXPECT_FALSE(AreAlike(trace, other));
  EXPECT_THAT([&] { TraceAt(traces, 33); },
              ThrowsMessage<InputError>("length 33: expected one from 8 to 32, "
                                        "which are traced"));
  EXPECT_THAT([&] { TraceAt(traces, 7); },
              ThrowsMessage<InputError>(HasSubstr("length 7: expected one")));
  EXPECT_THAT([&] { TraceAt(traces, 20); },
              ThrowsMessage<InputError>(HasSubstr("16.json and 32.json run "
                                                  "different operators")));
  EXPECT_NO_THROW(TraceAt(traces, 12));
}

}  // namespace
}  // namespace acplan::graph
