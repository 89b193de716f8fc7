#include "problems/schedule/schedule_repair.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "problems/schedule/schedule_meter.h"

// Idea. At the run with the most bytes over the budget, a value that is live
// and not used there can be dropped: then its maker runs again before the value
// is read next. The values that this run reads are kept until then, which takes
// memory elsewhere, or made again as well. Each such change is rated by the
// remaining bytes over the budget, summed over all runs, and by its time; the
// one with the least time for a byte is made. The sum falls with every change,
// so the search ends: within the budget, or when no change helps.
//
// Improving takes back repeated runs in a random window of stages and repairs
// with noise in the prices, so that other changes are made; worse schedules are
// forgotten.

namespace acplan::problems {

using graph::ScheduleGraph;
using graph::ScheduleNode;

namespace {

constexpr double kNoPrice = std::numeric_limits<double>::infinity();
// The most values of a run that are dropped in turn, out of those that can be.
constexpr size_t kMostDrops = 48;

// Nodes that run again in addition.
struct Change {
  int32_t stage = 0;
  std::vector<int32_t> nodes;
};

bool Runs(const StagedSchedule& schedule, int32_t stage, int32_t node) {
  return std::ranges::binary_search(schedule.repeats[stage], node);
}

void Insert(StagedSchedule& schedule, int32_t stage, int32_t node) {
  std::vector<int32_t>& nodes = schedule.repeats[stage];
  const auto at = std::ranges::lower_bound(nodes, node);
  if (at == nodes.end() || *at != node) nodes.insert(at, node);
}

void Erase(StagedSchedule& schedule, int32_t stage, int32_t node) {
  std::vector<int32_t>& nodes = schedule.repeats[stage];
  nodes.erase(std::ranges::lower_bound(nodes, node));
}

}  // namespace

// A schedule and the possible changes to it.
class ScheduleRepair::Search {
 public:
  Search(ScheduleRepair& owner, StagedSchedule& schedule, double noise)
      : owner_(owner),
        graph_(owner.graph_),
        schedule_(schedule),
        noise_(noise),
        meter_(owner.graph_, owner.budget_) {}

  bool Run(const solver::LimitClock& clock) {
    double excess = meter_.Excess(schedule_);
    while (excess > 0) {
      if (clock.Stop() != solver::StoppedBy::kNothing) return false;
      const std::vector<Change> changes = ChangesAt(meter_.WorstStep());
      const Change* best = nullptr;
      double best_price = kNoPrice;
      for (const Change& change : changes) {
        const double price = PriceOf(change, excess);
        if (price >= best_price) continue;
        best_price = price;
        best = &change;
      }
      if (best == nullptr) return false;
      for (const int32_t n : best->nodes) Insert(schedule_, best->stage, n);
      excess = meter_.Excess(schedule_);
    }
    return true;
  }

 private:
  // Returns the time for each byte by which the excess falls.
  double PriceOf(const Change& change, double excess) {
    double ms = 0;
    for (const int32_t n : change.nodes) {
      Insert(schedule_, change.stage, n);
      ms += graph_.nodes[n].ms;
    }
    const double less = excess - meter_.Excess(schedule_);
    for (const int32_t n : change.nodes) Erase(schedule_, change.stage, n);
    if (less <= 0) return kNoPrice;
    std::uniform_real_distribution<double> noise(1, 1 + noise_);
    return ms / less * noise(owner_.random_);
  }

  // The runs of the schedule with the stage of each.
  struct Steps {
    std::vector<int32_t> nodes;
    std::vector<int32_t> stages;
    std::vector<int32_t> begins;  // by stage: its first step
  };
  Steps ListSteps() const {
    Steps steps;
    for (int32_t s = 0; s < std::ssize(schedule_.repeats); ++s) {
      steps.begins.push_back(static_cast<int32_t>(steps.nodes.size()));
      for (const int32_t n : schedule_.repeats[s]) steps.nodes.push_back(n);
      steps.nodes.push_back(s);
      steps.stages.resize(steps.nodes.size(), s);
    }
    return steps;
  }

  // Returns, by value, the first step at or after `from` that reads the copy of
  // the value that is there before `from`; -1 if none does.
  std::vector<int32_t> NextReads(const Steps& steps, int32_t from) const {
    constexpr int32_t kUnknown = -2;
    std::vector<int32_t> next(graph_.values.size(), kUnknown);
    for (int32_t step = from; step < std::ssize(steps.nodes); ++step) {
      const ScheduleNode& node = graph_.nodes[steps.nodes[step]];
      for (const int32_t b : node.reads)
        if (next[b] == kUnknown) next[b] = step;
      for (const int32_t b : node.makes)
        if (next[b] == kUnknown) next[b] = -1;
    }
    for (size_t b = 0; b < next.size(); ++b) {
      if (next[b] != kUnknown) continue;
      next[b] = graph_.values[b].is_returned
                    ? static_cast<int32_t>(steps.nodes.size()) - 1
                    : -1;
    }
    return next;
  }

  // A dropped value: its maker runs again in a stage.
  struct Drop {
    int32_t stage = 0;
    int32_t maker = 0;
  };

  std::vector<Change> ChangesAt(int32_t step) {
    const Steps steps = ListSteps();
    const std::vector<int32_t> next = NextReads(steps, step + 1);
    const int32_t running_node = steps.nodes[step];
    const int32_t stage = steps.stages[step];
    std::vector<char> is_used(graph_.values.size(), 0);
    for (const int32_t b : graph_.nodes[running_node].reads) is_used[b] = 1;
    for (const int32_t b : graph_.nodes[running_node].makes) is_used[b] = 1;
    std::vector<Drop> drops;
    for (int32_t b = 0; b < std::ssize(next); ++b) {
      const int32_t maker = graph_.values[b].maker;
      if (maker >= stage) break;
      if (is_used[b] || next[b] < 0 || !graph_.nodes[maker].may_run_again ||
          graph_.values[b].bytes == 0)
        continue;
      const int32_t last = steps.stages[next[b]];
      const bool is_later_here = running_node != stage && maker > running_node;
      const int32_t first = is_later_here ? stage : stage + 1;
      for (const int32_t place : Places(first, last))
        drops.push_back({.stage = place, .maker = maker});
    }
    if (drops.size() > kMostDrops) {
      std::ranges::shuffle(drops, owner_.random_);
      drops.resize(kMostDrops);
    }
    std::vector<Change> changes;
    for (const Drop& drop : drops)
      AddChanges(steps, drop.stage, drop.maker, changes);
    return changes;
  }

  // Returns the last stage that will do, and sometimes an earlier one.
  std::vector<int32_t> Places(int32_t first, int32_t last) {
    std::vector<int32_t> places;
    if (last < first) return places;
    places.push_back(last);
    if (last > first) {
      std::uniform_int_distribution<int32_t> any(first, last - 1);
      places.push_back(any(owner_.random_));
    }
    return places;
  }

  // Adds the changes that run a node in a stage: with its inputs kept until
  // then, or made again.
  void AddChanges(const Steps& steps, int32_t stage, int32_t node,
                  std::vector<Change>& changes) const {
    if (node >= stage || Runs(schedule_, stage, node)) return;
    changes.push_back({.stage = stage, .nodes = {node}});
    const std::vector<int32_t> next = NextReads(steps, steps.begins[stage]);
    Change closure{.stage = stage, .nodes = {node}};
    Change shallow = closure;
    for (size_t i = 0; i < closure.nodes.size(); ++i) {
      for (const int32_t b : graph_.nodes[closure.nodes[i]].reads) {
        const int32_t maker = graph_.values[b].maker;
        if (next[b] >= 0 || !graph_.nodes[maker].may_run_again ||
            Runs(schedule_, stage, maker) ||
            std::ranges::find(closure.nodes, maker) != closure.nodes.end())
          continue;
        closure.nodes.push_back(maker);
        if (i == 0) shallow.nodes.push_back(maker);
      }
    }
    if (closure.nodes.size() == 1) return;
    if (shallow.nodes.size() < closure.nodes.size())
      changes.push_back(std::move(shallow));
    changes.push_back(std::move(closure));
  }

  ScheduleRepair& owner_;
  const ScheduleGraph& graph_;
  StagedSchedule& schedule_;
  double noise_;
  ScheduleMeter meter_;
};

ScheduleRepair::ScheduleRepair(const ScheduleGraph& graph, int64_t budget_bytes,
                               int seed)
    : graph_(graph),
      budget_(budget_bytes),
      random_(static_cast<std::mt19937::result_type>(seed)) {}

std::optional<StagedSchedule> ScheduleRepair::Repair(
    StagedSchedule schedule, const solver::LimitClock& clock) {
  if (!Search(*this, schedule, 0).Run(clock)) return std::nullopt;
  Prune(schedule);
  return schedule;
}

void ScheduleRepair::Prune(StagedSchedule& schedule) {
  struct Repeat {
    int32_t stage;
    int32_t node;
  };
  std::vector<Repeat> all;
  for (int32_t s = 0; s < std::ssize(schedule.repeats); ++s)
    for (const int32_t n : schedule.repeats[s]) all.push_back({s, n});
  std::ranges::shuffle(all, random_);
  std::ranges::stable_sort(all, [&](const Repeat& a, const Repeat& b) {
    return graph_.nodes[a.node].ms > graph_.nodes[b.node].ms;
  });
  ScheduleMeter meter(graph_, budget_);
  for (const Repeat& repeat : all) {
    Erase(schedule, repeat.stage, repeat.node);
    if (meter.Excess(schedule) > 0) Insert(schedule, repeat.stage, repeat.node);
  }
}

bool ScheduleRepair::Improve(StagedSchedule& schedule,
                             const solver::LimitClock& clock) {
  const auto stages = static_cast<int32_t>(schedule.repeats.size());
  std::vector<int32_t> used_stages;
  for (int32_t s = 0; s < stages; ++s)
    if (!schedule.repeats[s].empty()) used_stages.push_back(s);
  if (used_stages.empty()) return false;
  StagedSchedule next = schedule;
  const auto pick = [&](size_t below) {
    return std::uniform_int_distribution<size_t>(0, below - 1)(random_);
  };
  const size_t middle = pick(used_stages.size());
  const size_t width = 1 + pick(std::max<size_t>(2, used_stages.size() / 2));
  for (size_t u = middle; u < std::min(middle + width, used_stages.size());
       ++u) {
    std::vector<int32_t>& nodes = next.repeats[used_stages[u]];
    std::erase_if(nodes, [&](int32_t) { return random_() % 2 == 0; });
  }
  if (!Search(*this, next, 1).Run(clock)) return false;
  Prune(next);
  const double before = RecomputeMs(graph_, schedule);
  const double after = RecomputeMs(graph_, next);
  if (after > before) return false;
  schedule = std::move(next);
  return after < before;
}

}  // namespace acplan::problems
