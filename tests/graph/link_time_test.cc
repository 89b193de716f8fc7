#include "graph/trace/link_time.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <utility>
#include <vector>

#include "graph/trace/offload.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::Repetitions;

using enum OffloadEvent::Kind;

// A step of operators of whole milliseconds, and the storages that move
// meanwhile.
struct Example {
  Trace trace;
  Simulation simulation;
};

Example RandomExample(std::mt19937& random) {
  Example example;
  const auto steps = static_cast<int32_t>(4 + random() % 12);
  for (int32_t k = 0; k < steps; ++k) {
    TraceOperator op;
    op.runtime_ms = static_cast<double>(random() % 4);
    example.simulation.steps.push_back({.op = example.trace.operators.Add(op)});
  }
  OffloadUse& use = example.simulation.offload;
  const auto count = static_cast<int32_t>(random() % 5);
  std::vector<OffloadEvent> events;
  for (int32_t k = 0; k < count; ++k) {
    const MovedId storage =
        use.storages.Add({.bytes = static_cast<int64_t>(1 + random() % 6)});
    std::vector<StepId> at(4);
    for (StepId& step : at) step = IdAt<StepId>(random() % (steps + 1));
    std::ranges::sort(at);
    const bool comes_back = random() % 5 != 0;
    events.push_back({.kind = kSend, .step = at[0], .storage = storage});
    events.push_back({.kind = kRelease, .step = at[1], .storage = storage});
    if (comes_back) {
      events.push_back({.kind = kFetch, .step = at[2], .storage = storage});
    }
    events.push_back(
        {.kind = comes_back ? kUse : kDrop, .step = at[3], .storage = storage});
  }
  std::ranges::stable_sort(events, {}, &OffloadEvent::step);
  use.events = events;
  return example;
}

// Returns the stall by moving a byte a millisecond each way, and computing, a
// millisecond at a time. The storages from `first_there` on are on the host before.
int64_t StallOfTicks(const Example& example, MovedId first_there) {
  const OffloadUse& use = example.simulation.offload;
  IndexedVector<MovedId, int64_t> to_send, to_fetch;
  for (const MovedId k : use.storages.ids()) {
    to_send.push_back(k < first_there ? use.storages[k].bytes : 0);
    to_fetch.push_back(use.storages[k].bytes);
  }
  std::deque<MovedId> sends, fetches;
  size_t event = 0;
  StepId step = {};
  int64_t left_of_step = 0;
  int64_t stall = 0;
  for (;;) {
    bool waits = false;
    // Events and steps that take no time.
    while (left_of_step == 0 && !waits) {
      if (event < use.events.size() && use.events[event].step == step) {
        const OffloadEvent& now = use.events[event];
        if (now.kind == kSend) sends.push_back(now.storage);
        if (now.kind == kFetch) fetches.push_back(now.storage);
        waits = (now.kind == kRelease && to_send[now.storage] > 0) ||
                (now.kind == kUse && to_fetch[now.storage] > 0);
        if (!waits) ++event;
      } else if (step == example.simulation.steps.end_id()) {
        return stall;
      } else {
        const OperatorId op = example.simulation.steps[step].op;
        left_of_step =
            static_cast<int64_t>(example.trace.operators[op].runtime_ms);
        step = Next(step);
      }
    }
    // One millisecond.
    while (!sends.empty() && to_send[sends.front()] == 0) sends.pop_front();
    while (!fetches.empty() && to_fetch[fetches.front()] == 0) {
      fetches.pop_front();
    }
    const bool may_fetch = !fetches.empty() && to_send[fetches.front()] == 0;
    if (!sends.empty()) --to_send[sends.front()];
    if (may_fetch) --to_fetch[fetches.front()];
    if (waits) {
      ++stall;
    } else {
      --left_of_step;
    }
  }
}

TEST(TimeOnLink, IsThatOfAPlayedLink) {
  std::mt19937 random(5);
  int stalled = 0, free = 0;
  for (int round = 0; round < Repetitions(5000); ++round) {
    SCOPED_TRACE(round);
    const Example example = RandomExample(random);
    // A byte a millisecond.
    const LinkTime time =
        TimeOnLink(example.trace, example.simulation, BothWays(1e3));
    const int64_t stall =
        StallOfTicks(example, example.simulation.offload.storages.end_id());
    ASSERT_DOUBLE_EQ(time.stall_ms, static_cast<double>(stall));
    double waits = 0;
    for (const double wait : time.waits_ms) waits += wait;
    EXPECT_DOUBLE_EQ(waits, time.stall_ms);
    (stall > 0 ? stalled : free) += 1;
    // Twice the speed is no slower.
    EXPECT_LE(
        TimeOnLink(example.trace, example.simulation, BothWays(2e3)).stall_ms,
        time.stall_ms);
  }
  EXPECT_GT(stalled, Enough(500));
  EXPECT_GT(free, Enough(500));
}

// Copies that operators of the trace make, and wait for, beside those of a plan.
struct OwnCopies {
  Example example;  // whose operators copy
  Example played,
      alone;  // with events in place of these, with and without the plan's
  MovedId first_there = {};  // of the storages that are on the host before
};

OwnCopies WithCopiesOfTheTrace(const Example& plain, std::mt19937& random) {
  OwnCopies result = {.example = plain, .played = plain, .alone = plain};
  Trace& trace = result.example.trace;
  trace.operator_names = {"aten.mm.default", "acplan.offload.default",
                          "acplan.reload.default", "acplan.wait.default"};
  // At a step, waits of operators before it come first, and copies by it last.
  using Placed = std::pair<std::pair<StepId, int>, OffloadEvent>;
  std::vector<Placed> own, planned;
  for (const OffloadEvent& event : plain.simulation.offload.events)
    planned.push_back({{event.step, 1}, event});
  IndexedVector<MovedId, OffloadedStorage>& storages =
      result.played.simulation.offload.storages;
  for (const bool is_fetch : {false, true}) {
    if (is_fetch) result.first_there = storages.end_id();
    for (auto tries = random() % 3; tries > 0; --tries) {
      const auto first = IdAt<OperatorId>(random() % trace.operators.size());
      const auto last = IdAt<OperatorId>(random() % trace.operators.size());
      const bool is_taken = trace.operators[first].name != 0_name ||
                            trace.operators[last].name != 0_name;
      if (first >= last || is_taken) continue;
      const auto bytes = static_cast<int64_t>(1 + random() % 6);
      const StorageId s = trace.storages.Add({.bytes = bytes});
      trace.operators[first].name = is_fetch ? 2_name : 1_name;
      trace.operators[first].outputs = {s};
      trace.operators[last].name = 3_name;
      trace.operators[last].reads = {s};
      const MovedId copy = storages.Add({.bytes = bytes});
      // A step is an operator here.
      const auto begin = IdAt<StepId>(IndexOf(first));
      const auto end = IdAt<StepId>(IndexOf(last) + 1);
      own.push_back({{begin, 2}, {is_fetch ? kFetch : kSend, begin, copy}});
      own.push_back({{end, 0}, {is_fetch ? kUse : kRelease, end, copy}});
    }
  }
  result.alone.simulation.offload.storages = storages;
  const auto set = [](Example& example, std::vector<Placed> events) {
    std::ranges::stable_sort(events, {}, &Placed::first);
    example.simulation.offload.events.clear();
    for (const auto& [place, event] : events)
      example.simulation.offload.events.push_back(event);
  };
  set(result.alone, own);
  planned.insert(planned.end(), own.begin(), own.end());
  set(result.played, planned);
  return result;
}

TEST(TimeOnLink, SharesTheLinkWithCopiesOfTheTrace) {
  std::mt19937 random(6);
  int longer = 0;
  for (int round = 0; round < Repetitions(5000); ++round) {
    SCOPED_TRACE(round);
    const OwnCopies own = WithCopiesOfTheTrace(RandomExample(random), random);
    const Example& example = own.example;
    const LinkTime time =
        TimeOnLink(example.trace, example.simulation, BothWays(1e3));
    const int64_t stall = StallOfTicks(own.played, own.first_there) -
                          StallOfTicks(own.alone, own.first_there);
    ASSERT_DOUBLE_EQ(time.stall_ms, static_cast<double>(stall));
    EXPECT_EQ(time.waits_ms.size(), example.simulation.offload.events.size());
    Example plain = example;
    plain.trace.operator_names = {"aten.mm.default", "a", "b", "c"};
    const double plain_ms =
        TimeOnLink(plain.trace, plain.simulation, BothWays(1e3)).stall_ms;
    longer += time.stall_ms > plain_ms ? 1 : 0;
  }
  EXPECT_GT(longer, Enough(200));
}

// A model's shard of 4 bytes is copied to the device after a plan's 2 bytes, and the
// gradient to the host after a plan's 3; a byte takes a millisecond.
TEST(TimeOnLink, SharesTheLinkWithCopiesOfAModelOnTheHost) {
  Example example;
  Trace& trace = example.trace;
  trace.operator_names = {"aten.mm.default", "aten._to_copy.default"};
  trace.storages = {
      {.host_bytes = 4}, {.bytes = 4}, {.bytes = 4}, {.host_bytes = 4}};
  trace.operators.resize(6);
  const std::vector<double> ms = {1, 4, 3, 1, 4, 1};
  for (const OperatorId k : trace.operators.ids())
    trace.operators[k].runtime_ms = ms[IndexOf(k)];
  // The second copy stays on the device.
  const std::vector<OperatorId> copies = {1_op, 3_op, 4_op};
  for (const StorageId source : {0_s, 1_s, 2_s}) {
    TraceOperator& copy = trace.operators[copies[IndexOf(source)]];
    copy.name = 1_name;
    copy.reads = {source};
    copy.outputs = {Next(source)};
  }
  for (const OperatorId k : trace.operators.ids())
    example.simulation.steps.push_back({.op = k});
  EXPECT_TRUE(HasOwnCopies(trace));
  EXPECT_EQ(TimeOnLink(trace, example.simulation, BothWays(1e3)).stall_ms, 0);

  example.simulation.offload.storages = {{.bytes = 2}, {.bytes = 3}};
  example.simulation.offload.events = {{kFetch, 1_step, 0_moved},
                                       {kUse, 3_step, 0_moved},
                                       {kSend, 3_step, 1_moved},
                                       {kRelease, 6_step, 1_moved}};
  const LinkTime time = TimeOnLink(trace, example.simulation, BothWays(1e3));
  // The shard is there 2 ms late, the gradient another 2.
  EXPECT_DOUBLE_EQ(time.stall_ms, 4);
  EXPECT_EQ(time.waits_ms, (std::vector<double>{0, 0, 0, 0}));
}

// Two storages of 4 and 2 bytes, made before and after an operator of 3 ms, are
// released 1 ms later; a byte takes a millisecond.
TEST(TimeOnLink, WaitsForWhatIsBeforeInTheQueue) {
  Example example;
  example.trace.operators.resize(3);
  const std::vector<double> ms = {3, 1, 2};
  for (const OperatorId k : example.trace.operators.ids()) {
    example.trace.operators[k].runtime_ms = ms[IndexOf(k)];
    example.simulation.steps.push_back({.op = k});
  }
  example.simulation.offload.storages = {{.bytes = 4}, {.bytes = 2}};
  example.simulation.offload.events = {
      {kSend, 0_step, 0_moved},    {kSend, 1_step, 1_moved},
      {kRelease, 2_step, 0_moved}, {kRelease, 2_step, 1_moved},
      {kFetch, 2_step, 1_moved},   {kUse, 3_step, 1_moved}};
  const LinkTime time =
      TimeOnLink(example.trace, example.simulation, BothWays(1e3));
  // The second has arrived after 6 ms, 2 late, and is back after 8 ms.
  EXPECT_EQ(time.waits_ms, (std::vector<double>{0, 0, 0, 2, 0, 0}));
  EXPECT_DOUBLE_EQ(time.stall_ms, 2);
}

}  // namespace
}  // namespace acplan::graph
