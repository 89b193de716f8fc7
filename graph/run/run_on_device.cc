#include "graph/run/run_on_device.h"

#include <algorithm>
#include <utility>

#include "graph/allocator/caching_allocator.h"
#include "graph/allocator/state_layout.h"

// An iteration asks for the same as any other but the first. So it ends like another
// one if it begins like that one: with the same blocks at the same places, and the same
// free ones (graph/allocator/state_layout.h).

namespace acplan::graph {
namespace {

// A few seconds; the default takes half a minute.
constexpr int64_t kMostEventsOfRuns = 50'000'000;

constexpr int32_t kNoStorage = -1;

// The memory at the ends of iterations.
class Iterations {
 public:
  explicit Iterations(const TrainingRun& run) : run_(run) {}

  // Returns whether an iteration ends with the event. Requires that those before it
  // have ended.
  bool Ends(size_t event) const {
    const size_t ended = layouts_.size();
    return ended < run_.iteration_ends.size() &&
           event + 1 == run_.iteration_ends[ended].events;
  }

  // Notes the memory at the end of an iteration, in place of what was noted for it and
  // later ones. Returns the number of iterations since memory was as it is now, if it
  // ever was; else 0.
  int64_t Period(size_t iteration, const EventRunner& runner) {
    layouts_.resize(iteration);
    if (!run_.has_equal_iterations) {
      layouts_.emplace_back();
      return 0;
    }
    const AllocatorState& state = runner.allocator().state();
    std::vector<int32_t> storages(state.blocks.size(), kNoStorage);
    for (const auto& [storage, place] : run_.iteration_ends[iteration].blocks) {
      const BlockId id = runner.BlockAt(place);
      if (id == kNoBlock) continue;
      storages[static_cast<size_t>(id)] = static_cast<int32_t>(storage);
    }
    Layout layout = StateLayout(state, storages);
    const auto same = std::ranges::find(layouts_, layout);
    const int64_t period = layouts_.end() - same;
    const bool is_new = same == layouts_.end();
    layouts_.push_back(std::move(layout));
    return is_new ? 0 : period;
  }

  int64_t ended() const { return std::ssize(layouts_); }

 private:
  using Layout = std::vector<int64_t>;

  const TrainingRun& run_;
  std::vector<Layout> layouts_;  // after each iteration
};

}  // namespace

RunOutcome RunOnDevice(
    const TrainingRun& run, const AllocatorConfig& config, int64_t device_bytes,
    const std::function<void(size_t, const CachingAllocator&, BlockId)>& use) {
  RunOutcome outcome;
  Iterations iterations(run);
  std::vector<int64_t> retries;  // so far, at the end of each iteration
  outcome.replay = ReplayEvents(
      run.events, config, device_bytes,
      [&](size_t event, const EventRunner& runner, BlockId block) {
        if (use) use(event, runner.allocator(), block);
        outcome.events = event + 1;
        if (!iterations.Ends(event)) return true;
        retries.push_back(runner.allocator().counts().retries);
        outcome.period = iterations.Period(retries.size() - 1, runner);
        return outcome.period == 0;
      });
  outcome.iterations = iterations.ended();
  if (outcome.period > 0) {
    outcome.period_retries =
        retries.back() -
        retries[retries.size() - 1 - static_cast<size_t>(outcome.period)];
  }
  if (outcome.replay.failure && outcome.iterations > 0) {
    // The event that failed may be the last one of its iteration.
    const size_t last =
        run.iteration_ends[static_cast<size_t>(outcome.iterations - 1)].events;
    if (outcome.events == last) --outcome.iterations;
  }
  return outcome;
}

std::optional<LeastDevice> FindLeastDevice(const TrainingRun& run,
                                           const AllocatorConfig& config,
                                           int64_t from_bytes) {
  Iterations iterations(run);
  RunEnds ends{.repeats = [&](size_t iteration, const EventRunner& runner) {
    return iterations.Period(iteration, runner) > 0;
  }};
  if (run.has_equal_iterations) {
    for (const IterationEnd& end : run.iteration_ends) {
      ends.events.push_back(end.events);
    }
  }
  return FindLeastDevice(
      run.events, config,
      {.from_bytes = from_bytes, .most_events = kMostEventsOfRuns}, ends);
}

}  // namespace acplan::graph
