#include "problems/offload/link_queue.h"

#include <algorithm>

// Why a question may end early. Let both queues and the stalls be, at an event behind all
// of the storages that move as well, as they are without these. A copy that arrives later
// than without them may still be waited for, unless it has arrived by now. If all such
// copies have, every later event does what it does without these storages. Copies never
// arrive earlier because more of them are made.

namespace acplan::problems {

using graph::MovedId;
using graph::OffloadEvent;

LinkQueue::LinkQueue(
    const graph::IndexedVector<graph::StepId, double>& begins_ms,
    const graph::OffloadUse& use, const graph::LinkRates& rates)
    : begins_ms_(begins_ms),
      use_(use),
      rates_(rates),
      facts_(use.storages.size()) {
  for (size_t k = 0; k < use.events.size(); ++k)
    facts_[use.events[k].storage].events.push_back(k);
}

void LinkQueue::Set(const Storages& storages, bool moves) {
  for (const MovedId k : storages) facts_[k].moves = moves;
  is_followed_ = false;
}

double LinkQueue::StallMs() {
  Follow();
  return end_.stall_ms;
}

LinkQueue::State LinkQueue::After(State state, const OffloadEvent& event,
                                  double& arrival_ms) const {
  using enum OffloadEvent::Kind;
  const double now_ms = NowMs(event, state);
  const auto bytes = static_cast<double>(use_.storages[event.storage].bytes);
  switch (event.kind) {
    case kSend:
      state.to_host_ms =
          std::max(state.to_host_ms, now_ms) + bytes / rates_.to_host * 1e3;
      arrival_ms = state.to_host_ms;
      break;
    case kFetch:
      state.to_device_ms = std::max({state.to_device_ms, now_ms, arrival_ms}) +
                           bytes / rates_.to_device * 1e3;
      arrival_ms = state.to_device_ms;
      break;
    case kRelease:
    case kUse:
      state.stall_ms += std::max(0.0, arrival_ms - now_ms);
      break;
    case kDrop:
      break;
  }
  return state;
}

void LinkQueue::Follow() {
  if (is_followed_) return;
  is_followed_ = true;
  points_.clear();
  end_ = {};
  for (size_t k = 0; k < use_.events.size(); ++k) {
    const OffloadEvent& event = use_.events[k];
    StorageFacts& storage = facts_[event.storage];
    if (!storage.moves) continue;
    // Before its first event a storage was always where that finds it.
    if (storage.events.front() == k) storage.arrival_ms = 0;
    points_.push_back(
        {.event = k, .before = end_, .arrival_ms = storage.arrival_ms});
    end_ = After(end_, event, storage.arrival_ms);
  }
}

double LinkQueue::StallWithMs(const Storages& storages, double most_ms) {
  Follow();
  ++question_;
  std::vector<size_t> more_events;
  for (const MovedId k : storages) {
    more_events.insert(more_events.end(), facts_[k].events.begin(),
                       facts_[k].events.end());
  }
  if (more_events.empty()) return end_.stall_ms;
  std::ranges::sort(more_events);
  auto more = more_events.begin();
  auto point = std::ranges::lower_bound(points_, *more, {}, &Point::event);
  State state = point == points_.end() ? end_ : point->before;
  double last_late_ms = 0;
  while (point != points_.end() || more != more_events.end()) {
    if (state.stall_ms > most_ms) return state.stall_ms;
    const bool is_more = more != more_events.end() &&
                         (point == points_.end() || *more < point->event);
    const OffloadEvent& event = use_.events[is_more ? *more : point->event];
    if (more == more_events.end() && state == point->before &&
        last_late_ms <= NowMs(event, state)) {
      return end_.stall_ms;
    }
    StorageFacts& storage = facts_[event.storage];
    if (storage.question != question_) {
      storage.question = question_;
      storage.arrival_ms = is_more ? 0 : point->arrival_ms;
    }
    state = After(state, event, storage.arrival_ms);
    if (is_more) {
      ++more;
      continue;
    }
    ++point;
    const State& usual = point == points_.end() ? end_ : point->before;
    const bool is_late = state.to_host_ms != usual.to_host_ms ||
                         state.to_device_ms != usual.to_device_ms;
    if (is_late) last_late_ms = std::max(last_late_ms, storage.arrival_ms);
  }
  return state.stall_ms;
}

}  // namespace acplan::problems
