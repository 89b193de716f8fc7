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

// The lives whose buffers may move, with the times of their copies.
struct Copies {
  Copies(const MoveQuestion& question, const JointRun& run)
      : lives(graph::MovableLives(question.graph, run)) {
    const graph::LinkRates& rates = question.link.rates;
    for (size_t i = 0; i < lives.size(); ++i) {
      bytes.push_back(question.graph.buffers[lives[i].buffer].bytes);
      const auto size = static_cast<double>(bytes[i]);
      send_ms.push_back(size / rates.to_host * 1e3);
      fetch_ms.push_back(size / rates.to_device * 1e3);
      by_use.push_back(i);
    }
    std::ranges::stable_sort(by_use, {}, [this](size_t i) {
      return std::pair(lives[i].first_backward, lives[i].maker_step);
    });
  }

  std::vector<KeptLife> lives;  // in the order in which they are made
  std::vector<int64_t> bytes = {};
  std::vector<double> send_ms = {};
  std::vector<double> fetch_ms = {};
  std::vector<size_t> by_use = {};  // the first read first
};

// Returns how long a run waits for moves, by life, as StallMs of link_use.h does: all
// copies to the host and releases are before all copies back and reads.
double StallOf(const Copies& copies, const std::vector<JointMove>& moves,
               const Decisions& decisions, const StepBegins& begins) {
  const std::vector<KeptLife>& lives = copies.lives;
  std::vector<size_t> sends;
  std::vector<size_t> uses;
  for (size_t i = 0; i < lives.size(); ++i) {
    if (decisions[i].is_moved) sends.push_back(i);
    const size_t use = copies.by_use[i];
    if (decisions[use].is_moved) uses.push_back(use);
  }
  std::vector<size_t> releases = sends;
  std::ranges::stable_sort(releases, {},
                           [&](size_t i) { return moves[i].release; });
  std::vector<size_t> fetches = sends;
  std::ranges::stable_sort(fetches, {}, [&](size_t i) {
    return std::pair(moves[i].fetch, lives[i].first_backward);
  });
  double stall_ms = 0;
  std::vector<double> arrivals_ms(lives.size(), 0);
  const auto now_ms = [&](int32_t step) {
    return begins[graph::StepId{step}] + stall_ms;
  };
  const auto wait_for = [&](size_t i, int32_t step) {
    stall_ms += std::max(0.0, arrivals_ms[i] - now_ms(step));
  };
  double link_ms = 0;
  size_t next = 0;
  for (const size_t i : releases) {
    for (; next < sends.size(); ++next) {
      const size_t k = sends[next];
      const int32_t step = lives[k].maker_step + 1;
      if (step > moves[i].release) break;
      link_ms = std::max(link_ms, now_ms(step)) + copies.send_ms[k];
      arrivals_ms[k] = link_ms;
    }
    wait_for(i, moves[i].release);
  }
  link_ms = 0;
  next = 0;
  for (const size_t i : uses) {
    for (; next < fetches.size(); ++next) {
      const size_t k = fetches[next];
      if (moves[k].fetch > lives[i].first_backward) break;
      link_ms = std::max({link_ms, now_ms(moves[k].fetch), arrivals_ms[k]}) +
                copies.fetch_ms[k];
      arrivals_ms[k] = link_ms;
    }
    wait_for(i, lives[i].first_backward);
  }
  return stall_ms;
}

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
        copies_(question, run),
        lives_(copies_.lives),
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
  int64_t BytesOf(size_t i) const { return copies_.bytes[i]; }

  bool HasRoom(size_t i) const {
    int64_t bytes = BytesOf(i);
    for (size_t k = 0; k < lives_.size(); ++k)
      if (decisions_[k].is_moved) bytes += BytesOf(k);
    return bytes <= question_.link.host_memory_bytes;
  }

  Placement Place(const Decisions& decisions) const {
    std::vector<JointMove> moves(lives_.size());
    double to_host_ms = 0;
    for (size_t i = 0; i < lives_.size(); ++i) {
      if (!decisions[i].is_moved) continue;
      const KeptLife& life = lives_[i];
      const double made_ms = begins_[graph::StepId{life.maker_step + 1}];
      to_host_ms = std::max(to_host_ms, made_ms) + copies_.send_ms[i];
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
      next_ms = std::min(next_ms, read_ms) - copies_.fetch_ms[i];
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
    placement.stall_ms = StallOf(copies_, moves, decisions, begins_);
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
  const Copies copies_;
  const std::vector<KeptLife>& lives_;
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
