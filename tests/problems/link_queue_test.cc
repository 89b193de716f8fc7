#include "problems/offload/link_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "graph/trace/link_time.h"

namespace acplan::problems {
namespace {

using graph::MovedId;
using graph::OffloadEvent;
using graph::StepId;

constexpr int kQueueSteps = 30;

// Storages that leave and come back at random steps of a step, and some that were on
// the host before.
graph::OffloadUse RandomUse(std::mt19937& random) {
  using enum OffloadEvent::Kind;
  graph::OffloadUse use;
  const auto count = 1 + random() % 12;
  for (size_t k = 0; k < count; ++k) {
    const MovedId id =
        use.storages.Add({.bytes = 1 + static_cast<int64_t>(random() % 4000)});
    std::array<int32_t, 4> steps = {};
    for (int32_t& step : steps)
      step = static_cast<int32_t>(random() % kQueueSteps);
    std::ranges::sort(steps);
    if (random() % 8 == 0) {
      use.events.push_back({kFetch, StepId{steps[0]}, id});
      use.events.push_back({kUse, StepId{steps[1]}, id});
      continue;
    }
    use.events.push_back({kSend, StepId{steps[0]}, id});
    use.events.push_back({kRelease, StepId{steps[1]}, id});
    if (random() % 8 == 0) {
      use.events.push_back({kDrop, StepId{steps[2]}, id});
      continue;
    }
    use.events.push_back({kFetch, StepId{steps[2]}, id});
    use.events.push_back({kUse, StepId{steps[3]}, id});
  }
  std::ranges::stable_sort(use.events, {}, &OffloadEvent::step);
  return use;
}

// The oracle follows all events of a choice.
TEST(LinkQueue, WaitsAsAllEventsDo) {
  std::mt19937 random(44);
  const auto below = [&](uint32_t end) {
    return static_cast<double>(random() % end);
  };
  int waiting = 0, early = 0;
  for (int seed = 0; seed < 500 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const graph::OffloadUse use = RandomUse(random);
    graph::IndexedVector<StepId, double> begins_ms = {0};
    for (int k = 0; k < kQueueSteps; ++k)
      begins_ms.push_back(begins_ms.back() + below(3) * 0.37);
    const graph::LinkRates rates = {.to_host = 1e3 * (100 + below(3000)),
                                    .to_device = 1e6};
    LinkQueue queue(begins_ms, use, rates);
    graph::IndexedVector<MovedId, graph::Flag> moves(use.storages.size(),
                                                     false);
    const auto stall_of = [&](const auto& choice) {
      return graph::TimeOnLink(begins_ms, use, choice, rates).stall_ms;
    };
    for (int change = 0; change < 12; ++change) {
      const MovedId changed =
          graph::IdAt<MovedId>(random() % use.storages.size());
      moves[changed] = !moves[changed];
      queue.Set({changed}, moves[changed]);
      ASSERT_EQ(queue.StallMs(), stall_of(moves));
      LinkQueue::Storages more;
      auto with_more = moves;
      for (const MovedId k : moves.ids()) {
        if (moves[k] || random() % 3 != 0) continue;
        more.push_back(k);
        with_more[k] = true;
      }
      const double expected_ms = stall_of(with_more);
      waiting += expected_ms > stall_of(moves) ? 1 : 0;
      ASSERT_EQ(
          queue.StallWithMs(more, std::numeric_limits<double>::infinity()),
          expected_ms);
      const double most_ms = expected_ms * 0.2 * below(10);
      const double stall_ms = queue.StallWithMs(more, most_ms);
      early += stall_ms != expected_ms ? 1 : 0;
      if (expected_ms <= most_ms) {
        ASSERT_EQ(stall_ms, expected_ms);
      } else {
        ASSERT_GT(stall_ms, most_ms);
      }
    }
  }
  EXPECT_GT(waiting, 500);
  EXPECT_GT(early, 100);
}

}  // namespace
}  // namespace acplan::problems
