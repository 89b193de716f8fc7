#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/trace/link_time.h"
#include "graph/trace/offload.h"
#include "graph/trace/simulation.h"

namespace acplan::problems {

// The time that a step waits for a choice of what moves, by the model of
// graph/trace/link_time.h, and the time if more of it moved.
//
// Copies of a direction are a queue. A storage that moves as well changes nothing before
// its first event, and nothing behind the moment after its last one at which both queues
// and the stalls are as they were. So the question is answered from the state of the queue
// before each event of the choice, mostly by a few events.
class LinkQueue {
 public:
  using Storages = std::vector<graph::MovedId>;

  // Begins without any storage that moves. Refers to `begins_ms` and `use`.
  LinkQueue(const graph::IndexedVector<graph::StepId, double>& begins_ms,
            const graph::OffloadUse& use, const graph::LinkRates& rates);

  // Lets storages move, or stay.
  void Set(const Storages& storages, bool moves);

  bool Moves(graph::MovedId storage) const { return facts_[storage].moves; }

  // Returns the time that the step waits.
  double StallMs();

  // Returns the time if these storages, which stay, moved as well. May return another
  // time above `most_ms` in place of one that is above it.
  double StallWithMs(const Storages& storages, double most_ms);

 private:
  // When each direction of the link is free, and the stalls so far.
  struct State {
    double to_host_ms = 0;
    double to_device_ms = 0;
    double stall_ms = 0;
    bool operator==(const State&) const = default;
  };
  // An event of the choice, and what is known before it.
  struct Point {
    size_t event = 0;
    State before = {};
    double arrival_ms = 0;  // of the storage's last copy
  };

  struct StorageFacts {
    bool moves = false;
    std::vector<size_t> events = {};
    // The end of its last copy, as this question sees it.
    int64_t question = 0;
    double arrival_ms = 0;
  };

  double NowMs(const graph::OffloadEvent& event, const State& state) const {
    return begins_ms_[event.step] + state.stall_ms;
  }
  // Returns the state after an event of a storage that moves, and changes when its copy
  // arrives.
  State After(State state, const graph::OffloadEvent& event,
              double& arrival_ms) const;
  // Brings points_ and end_ up to date.
  void Follow();

  const graph::IndexedVector<graph::StepId, double>& begins_ms_;
  const graph::OffloadUse& use_;
  const graph::LinkRates rates_;
  graph::IndexedVector<graph::MovedId, StorageFacts> facts_;
  bool is_followed_ = false;
  std::vector<Point> points_;
  State end_;
  int64_t question_ = 0;  // the number of the last one
};

}  // namespace acplan::problems
