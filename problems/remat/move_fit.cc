#include "problems/remat/move_fit.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

#include "graph/joint/joint_moves.h"
#include "problems/remat/link_use.h"

// Idea. A copy costs nothing if it is over before anything waits for it. So by default a
// buffer leaves when its copy has ended, after all copies before it, and comes back as late
// as it may without being late. While copies are under way, both take memory. At the step
// that breaks the budget most, either one more buffer moves, or one that is under way there
// leaves at once (comes back only then), for which the step waits. The search takes the
// change with the least stall for the bytes that it frees, until the budget is kept. Then
// moves, and times that turned out to be needless, are taken back.

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointMove;
using graph::JointRun;
using graph::KeptLife;

constexpr double kSameMs = 1e-9;

// The decision about a buffer that may move.
struct Decision {
  bool is_moved = false;
  // The latest release and the earliest fetch that it may have.
  int32_t release_cap = std::numeric_limits<int32_t>::max();
  int32_t fetch_floor = 0;
};
using Decisions = std::vector<Decision>;  // by life

// Moves, their stall, and the bytes that steps then have.
struct Placement {
  std::vector<JointMove> moves = {};
  double stall_ms = 0;
  std::vector<int64_t> live_bytes = {};
  int32_t peak_step = -1;
  int64_t peak_bytes = 0;
};

class MoveSearch {
 public:
  MoveSearch(const MoveQuestion& question, const JointRun& run)
      : question_(question),
        run_(run),
        lives_(graph::MovableLives(question.graph, run)),
        begins_(BeginsOf(question.graph, run)),
        backward_(graph::FirstOfBackward(run)),
        decisions_(lives_.size()) {
    for (size_t i = 0; i < lives_.size(); ++i) by_read_.push_back(i);
    std::ranges::stable_sort(by_read_, [this](size_t a, size_t b) {
      return lives_[a].first_backward > lives_[b].first_backward;
    });
  }

  void Wish(const std::vector<int32_t>& buffers) {
    for (size_t i = 0; i < lives_.size(); ++i) {
      const bool is_wished =
          std::ranges::find(buffers, lives_[i].buffer) != buffers.end();
      if (is_wished && HasRoom(i)) decisions_[i].is_moved = true;
    }
  }

  void WishAll() {
    for (size_t i = 0; i < lives_.size(); ++i)
      if (HasRoom(i))
        decisions_[i] = {.is_moved = true,
                         .release_cap = 0,
                         .fetch_floor = std::numeric_limits<int32_t>::max()};
  }

  // Changes decisions until the budget is kept. Returns whether it is.
  bool Fit() {
    Placement now = Place(decisions_);
    while (now.peak_bytes > question_.budget_bytes) {
      const std::optional<Decisions> better = Change(now);
      if (!better) return false;
      decisions_ = *better;
      now = Place(decisions_);
    }
    return true;
  }

  // Takes back what the budget does not need.
  void Prune() {
    Placement now = Place(decisions_);
    const auto try_it = [&](const Decisions& other) {
      const Placement next = Place(other);
      if (next.peak_bytes > question_.budget_bytes ||
          next.stall_ms > now.stall_ms + kSameMs)
        return;
      decisions_ = other;
      now = next;
    };
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (!decisions_[i].is_moved) continue;
      Decisions fewer = decisions_;
      fewer[i] = {};
      try_it(fewer);
      if (!decisions_[i].is_moved) continue;
      Decisions loose = decisions_;
      loose[i] = {.is_moved = true};
      try_it(loose);
    }
  }

  MovedRun Result() const {
    Placement placement = Place(decisions_);
    return {.run = WithMoves(question_.graph, run_, std::move(placement.moves)),
            .stall_ms = placement.stall_ms};
  }

 private:
  int64_t BytesOf(size_t i) const {
    return question_.graph.buffers[lives_[i].buffer].bytes;
  }

  bool HasRoom(size_t i) const {
    int64_t bytes = BytesOf(i);
    for (size_t k = 0; k < lives_.size(); ++k)
      if (decisions_[k].is_moved) bytes += BytesOf(k);
    return bytes <= question_.link.host_memory_bytes;
  }

  double MsAt(double rate, size_t i) const {
    return static_cast<double>(BytesOf(i)) / rate * 1e3;
  }

  Placement Place(const Decisions& decisions) const {
    const graph::LinkRates& rates = question_.link.rates;
    std::vector<JointMove> moves(lives_.size());
    double to_host_ms = 0;
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (!decisions[i].is_moved) continue;
      const KeptLife& life = lives_[i];
      const double made_ms = begins_[graph::StepId{life.maker_step + 1}];
      to_host_ms = std::max(to_host_ms, made_ms) + MsAt(rates.to_host, i);
      const int32_t arrived = FirstAt(to_host_ms);
      const int32_t release = std::min(arrived, decisions[i].release_cap);
      moves[i] = {
          .buffer = life.buffer,
          .release = std::clamp(release, life.last_forward + 1, backward_)};
    }
    double next_ms = std::numeric_limits<double>::infinity();
    for (const size_t i : by_read_) {
      if (!decisions[i].is_moved) continue;
      const KeptLife& life = lives_[i];
      const double read_ms = begins_[graph::StepId{life.first_backward}];
      next_ms = std::min(next_ms, read_ms) - MsAt(rates.to_device, i);
      const int32_t fetch = std::max(LastAt(next_ms), decisions[i].fetch_floor);
      moves[i].fetch = std::clamp(fetch, backward_, life.first_backward);
    }
    Placement placement{.live_bytes = run_.live_bytes};
    std::vector<int64_t> change(run_.steps.size() + 1, 0);
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (!decisions[i].is_moved) continue;
      placement.moves.push_back(moves[i]);
      change[moves[i].release] -= BytesOf(i);
      change[moves[i].fetch] += BytesOf(i);
    }
    int64_t away = 0;
    for (size_t s = 0; s < run_.steps.size(); ++s) {
      away += change[s];
      placement.live_bytes[s] += away;
    }
    const auto peak = std::ranges::max_element(placement.live_bytes);
    if (peak != placement.live_bytes.end()) {
      placement.peak_step =
          static_cast<int32_t>(peak - placement.live_bytes.begin());
      placement.peak_bytes = *peak;
    }
    placement.stall_ms = StallMs(
        begins_, LinkUse(question_.graph, lives_, placement.moves), rates);
    return placement;
  }

  // Returns the first step that begins at this time or later, and the last one that does
  // so at this time or earlier.
  int32_t FirstAt(double ms) const {
    const auto at =
        std::lower_bound(begins_.begin(), begins_.end(), ms - kSameMs);
    return static_cast<int32_t>(at - begins_.begin());
  }
  int32_t LastAt(double ms) const {
    const auto at =
        std::upper_bound(begins_.begin(), begins_.end(), ms + kSameMs);
    return static_cast<int32_t>(at - begins_.begin()) - 1;
  }

  // Returns the decisions with one more change that frees bytes at the peak.
  std::optional<Decisions> Change(const Placement& now) const {
    const int32_t s = now.peak_step;
    const int64_t excess_bytes = now.peak_bytes - question_.budget_bytes;
    std::vector<size_t> open;
    for (size_t i = 0; i < lives_.size(); ++i) {
      const KeptLife& life = lives_[i];
      if (s <= life.last_forward || s >= life.first_backward) continue;
      if (!decisions_[i].is_moved && !HasRoom(i)) continue;
      if (decisions_[i].is_moved && IsAway(now, life.buffer)) continue;
      open.push_back(i);
    }
    std::ranges::stable_sort(
        open, [this](size_t a, size_t b) { return BytesOf(a) > BytesOf(b); });
    std::optional<Decisions> best;
    std::tuple<double, int64_t> best_rank;
    for (const size_t i : open) {
      Decisions next = decisions_;
      next[i].is_moved = true;
      if (s < backward_) {
        next[i].release_cap = std::min(next[i].release_cap, s);
      } else {
        next[i].fetch_floor = std::max(next[i].fetch_floor, s + 1);
      }
      const double added_ms = Place(next).stall_ms - now.stall_ms;
      const int64_t freed = std::min(BytesOf(i), excess_bytes);
      const std::tuple rank(
          added_ms <= kSameMs ? 0 : added_ms / static_cast<double>(freed),
          -BytesOf(i));
      if (best && rank >= best_rank) continue;
      best = std::move(next);
      best_rank = rank;
      if (std::get<0>(rank) == 0) break;
    }
    return best;
  }

  static bool IsAway(const Placement& now, int32_t buffer) {
    const auto move = std::ranges::find(now.moves, buffer, &JointMove::buffer);
    return move->release <= now.peak_step && now.peak_step < move->fetch;
  }

  const MoveQuestion& question_;
  const JointRun& run_;
  const std::vector<KeptLife> lives_;  // in the order in which they are made
  const StepBegins begins_;
  const int32_t backward_;
  std::vector<size_t> by_read_;  // lives, the last read first
  Decisions decisions_;
};

}  // namespace

std::optional<MovedRun> FitByMoves(const MoveQuestion& question,
                                   const JointRun& run,
                                   const std::vector<int32_t>& wishes) {
  MoveSearch search(question, run);
  search.Wish(wishes);
  if (!search.Fit()) return std::nullopt;
  search.Prune();
  return search.Result();
}

JointRun MoveAll(const MoveQuestion& question, const JointRun& run) {
  MoveSearch search(question, run);
  search.WishAll();
  return search.Result().run;
}

}  // namespace acplan::problems
