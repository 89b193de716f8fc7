#include "graph/trace/stream_times.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Repetitions;

using Steps = IndexedVector<StepId, Simulation::Step>;

// A product and a collective; operators of whole milliseconds.
struct Example {
  Trace trace;
  Steps steps;

  Example() {
    trace.operator_names.push_back("aten.mm.default");
    trace.operator_names.push_back("c10d._allgather_base_.default");
  }

  OperatorId Add(int32_t stream, double ms,
                 const std::vector<OperatorId>& waits = {}) {
    TraceOperator op;
    op.name = OperatorNameId{stream == 0 ? 0 : 1};
    op.stream = stream;
    op.runtime_ms = ms;
    op.waits = waits;
    return trace.operators.Add(op);
  }

  void Run(OperatorId op, CallId redone = kNone) {
    steps.push_back({.op = op, .redone = redone});
  }

  StreamTimes Times() const { return TimeOnStreams(trace, steps); }
};

TEST(StreamTimes, HideWhatRunsAgainBeforeAWait) {
  Example example;
  const OperatorId gather = example.Add(1, 5);
  const OperatorId product = example.Add(0, 2);
  const OperatorId user = example.Add(0, 3, {gather});
  for (const OperatorId op : {gather, product, user}) example.Run(op);
  EXPECT_TRUE(HasStreams(example.trace));
  EXPECT_EQ(example.Times().step_ms, 8);
  EXPECT_EQ(example.Times().communication_ms, 5);
  EXPECT_EQ(example.Times().exposed_ms, 3);

  example.steps.clear();
  example.Run(gather);
  example.Run(product);
  example.Run(product, 0_call);
  example.Run(user);
  EXPECT_EQ(example.Times().step_ms, 8);
  EXPECT_EQ(example.Times().exposed_ms, 1);

  example.steps.clear();
  example.Run(gather);
  for (int k = 0; k < 4; ++k) example.Run(product);
  example.Run(user);
  EXPECT_EQ(example.Times().step_ms, 11);
  EXPECT_EQ(example.Times().exposed_ms, 0);
}

TEST(StreamTimes, WaitForTheLatestRun) {
  Example example;
  const OperatorId gather = example.Add(1, 5);
  const OperatorId user = example.Add(0, 1, {gather});
  example.Run(gather);
  example.Run(user);
  EXPECT_EQ(example.Times().step_ms, 6);
  example.Run(user, 0_call);
  EXPECT_EQ(example.Times().step_ms, 7);
  example.Run(gather, 0_call);
  example.Run(user, 0_call);
  EXPECT_EQ(example.Times().step_ms, 11);
}

TEST(StreamTimes, OfOneStreamAreSums) {
  Example example;
  for (int k = 0; k < 3; ++k) example.Run(example.Add(0, 1 + k));
  EXPECT_FALSE(HasStreams(example.trace));
  EXPECT_EQ(example.Times().step_ms, 6);
  EXPECT_EQ(example.Times().exposed_ms, 0);
}

TEST(StreamTimes, KnowCollectivesByTheirNamespaces) {
  EXPECT_TRUE(IsCollective("c10d._allgather_base_.default"));
  EXPECT_TRUE(IsCollective("_c10d_functional.all_reduce.default"));
  EXPECT_FALSE(IsCollective("fsdp.all_gather_copy_in.default"));
  EXPECT_FALSE(IsCollective("acplan.ring_attention.default"));
}

Example RandomExample(std::mt19937& random) {
  Example example;
  const auto count = static_cast<int32_t>(1 + random() % 15);
  for (int32_t k = 0; k < count; ++k) {
    std::vector<OperatorId> waits;
    for (int32_t other = 0; other < k; ++other) {
      if (random() % 5 == 0) waits.push_back(OperatorId{other});
    }
    example.Add(static_cast<int32_t>(random() % 3),
                static_cast<double>(random() % 4), waits);
    example.Run(OperatorId{k});
    while (random() % 3 == 0) {
      example.Run(OperatorId{static_cast<int32_t>(random() % (k + 1))}, 0_call);
    }
  }
  return example;
}

// Returns the milliseconds of a step by running it a millisecond at a time.
int64_t TicksOf(const Example& example) {
  struct Run {
    const TraceOperator* op;
    std::vector<size_t> after;  // the runs that have ended when it starts
    double remaining_ms;
    bool has_ended = false;
  };
  std::vector<Run> runs;
  std::map<int32_t, size_t> last_of_stream;
  std::map<OperatorId, size_t> last_of_operator;
  for (const Simulation::Step& step : example.steps) {
    const TraceOperator& op = example.trace.operators[step.op];
    Run run{.op = &op, .after = {}, .remaining_ms = op.runtime_ms};
    if (last_of_stream.contains(op.stream)) {
      run.after.push_back(last_of_stream[op.stream]);
    }
    for (const OperatorId other : op.waits) {
      if (last_of_operator.contains(other)) {
        run.after.push_back(last_of_operator[other]);
      }
    }
    last_of_stream[op.stream] = last_of_operator[step.op] = runs.size();
    runs.push_back(run);
  }
  for (int64_t now = 0;; ++now) {
    std::vector<Run*> running;
    // In order, so that what takes no time ends at once.
    bool has_all_ended = true;
    for (Run& run : runs) {
      bool may_run = !run.has_ended;
      for (const size_t other : run.after) may_run &= runs[other].has_ended;
      if (may_run && run.remaining_ms == 0) run.has_ended = true;
      if (may_run && run.remaining_ms > 0) running.push_back(&run);
      has_all_ended &= run.has_ended;
    }
    if (has_all_ended) return now;
    for (Run* run : running) {
      if (--run->remaining_ms == 0) run->has_ended = true;
    }
  }
}

TEST(StreamTimes, AreThoseOfRunningAMillisecondAtATime) {
  std::mt19937 random(7);
  for (int k = 0; k < Repetitions(4000); ++k) {
    const Example example = RandomExample(random);
    ASSERT_EQ(example.Times().step_ms, TicksOf(example)) << k;
  }
}

}  // namespace
}  // namespace acplan::graph
