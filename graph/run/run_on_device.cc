#include "graph/run/run_on_device.h"

#include <algorithm>
#include <utility>

#include "graph/allocator/allocator_state.h"
#include "graph/allocator/blocks.h"
#include "graph/allocator/caching_allocator.h"

// An iteration asks for the same as any other but the first. So it ends like another
// one if it begins like that one: with the same blocks at the same places, and the same
// free ones. Where blocks lie is decided by sizes, by the order of addresses and of
// segments, and by the order of free blocks. A layout states these and no address,
// as new segments have ever higher ones.

namespace acplan::graph {
namespace {

using Layout = std::vector<int64_t>;

// A few seconds; kMostEvents takes half a minute.
constexpr int64_t kMostEventsOfRuns = 50'000'000;

constexpr int64_t kFree = -1;
constexpr int64_t kUnmapped = -2;
constexpr int64_t kWaits = -3;

// `storages`: by block of the allocator, what it has.
Layout LayoutOf(const AllocatorState& state,
                const std::vector<int64_t>& storages) {
  Layout layout;
  std::vector<BlockId> blocks = ExistingBlocks(state);
  std::ranges::sort(blocks, {},
                    [&](BlockId id) { return state.At(id).address; });
  std::vector<int64_t> place(state.blocks.size(), 0);
  std::vector<BlockId> by_age = blocks;
  for (size_t k = 0; k < blocks.size(); ++k) {
    const Block& block = state.At(blocks[k]);
    place[static_cast<size_t>(blocks[k])] = static_cast<int64_t>(k);
    const int64_t content = block.is_allocated
                                ? storages[static_cast<size_t>(blocks[k])]
                            : !block.is_mapped ? kUnmapped
                            : block.IsFree()   ? kFree
                                               : kWaits;
    const bool begins_segment = block.previous == kNoBlock;
    layout.insert(layout.end(), {static_cast<int64_t>(block.pool), block.size,
                                 content, begins_segment ? 1 : 0});
  }
  std::ranges::sort(by_age, {},
                    [&](BlockId id) { return state.At(id).serial; });
  const bool has_age = state.config.garbage_collection_threshold > 0;
  for (const BlockId id : by_age) {
    // In 2.12 the oldest of equal blocks serves.
    if (state.config.version == PyTorchVersion{2, 12}) {
      layout.push_back(place[static_cast<size_t>(id)]);
    }
    const Block& block = state.At(id);
    if (!has_age || !block.IsFree()) continue;
    const Pool& pool = state.At(block.pool);
    layout.push_back(place[static_cast<size_t>(id)]);
    layout.push_back(state.At(pool.owner).searches[pool.is_small ? 0 : 1] -
                     block.birth);
  }
  return layout;
}

// The memory at the ends of iterations.
class Iterations {
 public:
  explicit Iterations(const TrainingRun& run)
      : run_(run), blocks_(run.storages.size(), kNoBlock) {}

  // Notes an event. Returns the number of iterations since memory was as it is
  // now, if the event ends an iteration and it ever was; else 0.
  int64_t Period(size_t event, const CachingAllocator& allocator,
                 BlockId block) {
    const AllocatorEvent& request = run_.events.events[event];
    if (block != kNoBlock) blocks_[static_cast<size_t>(request.block)] = block;
    const size_t ended = layouts_.size();
    const bool ends = ended < run_.iteration_ends.size() &&
                      event + 1 == run_.iteration_ends[ended].events;
    if (!ends) return 0;
    if (!run_.has_equal_iterations) {
      layouts_.emplace_back();
      return 0;
    }
    const AllocatorState& state = allocator.state();
    std::vector<int64_t> storages(state.blocks.size(), kFree);
    for (const auto& [storage, of_run] : run_.iteration_ends[ended].blocks) {
      const BlockId id = blocks_[static_cast<size_t>(of_run)];
      if (id != kNoBlock) storages[static_cast<size_t>(id)] = IndexOf(storage);
    }
    Layout layout = LayoutOf(state, storages);
    retries_.push_back(allocator.counts().retries);
    const auto same = std::ranges::find(layouts_, layout);
    const int64_t period = layouts_.end() - same;
    const bool is_new = same == layouts_.end();
    layouts_.push_back(std::move(layout));
    return is_new ? 0 : period;
  }

  int64_t ended() const { return std::ssize(layouts_); }

  // Returns the retries of so many of the last iterations.
  int64_t LastRetries(int64_t iterations) const {
    return retries_.back() - retries_[retries_.size() - 1 - iterations];
  }

 private:
  const TrainingRun& run_;
  std::vector<BlockId> blocks_;   // by block of the run
  std::vector<Layout> layouts_;   // after each iteration
  std::vector<int64_t> retries_;  // so far, then
};

}  // namespace

RunOutcome RunOnDevice(
    const TrainingRun& run, const AllocatorConfig& config, int64_t device_bytes,
    const std::function<void(size_t, const CachingAllocator&, BlockId)>& use) {
  RunOutcome outcome;
  Iterations iterations(run);
  outcome.replay = ReplayEvents(
      run.events, config, device_bytes,
      [&](size_t event, const CachingAllocator& allocator, BlockId block) {
        if (use) use(event, allocator, block);
        outcome.events = event + 1;
        outcome.period = iterations.Period(event, allocator, block);
        return outcome.period == 0;
      });
  outcome.iterations = iterations.ended();
  if (outcome.period > 0) {
    outcome.period_retries = iterations.LastRetries(outcome.period);
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
  return FindLeastDevice(
      std::max(from_bytes, MostBlockBytes(run.events, config)),
      [&](int64_t device) {
        const RunOutcome outcome = RunOnDevice(run, config, device);
        return DeviceTrial{
            .fits = outcome.Fits(),
            .next_device_bytes = outcome.replay.next_device_bytes,
            .events = static_cast<int64_t>(outcome.events)};
      },
      kMostEventsOfRuns);
}

}  // namespace acplan::graph
