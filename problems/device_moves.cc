#include "problems/device_moves.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "graph/allocator/least_device.h"
#include "graph/base/input_error.h"
#include "graph/run/peak_layout.h"
#include "graph/run/run_on_device.h"
#include "problems/trace/problem/unit_policies.h"
#include "problems/trace/relaxation/near_plans.h"

// Plans are states of a search that takes the best first: the one whose run needs the
// smallest device. Its neighbours are tried one at a time, those first that concern the
// modules whose blocks lie beside the largest holes where the run fails. Once a neighbour
// needs less, the search goes on from there, and comes back if that leads nowhere. No plan
// is tried twice. After the first plan that fits, only changes that recompute less and fit
// as well are made.

namespace acplan::problems {
namespace {

using graph::CheckpointedModule;
using graph::LivedStep;
using graph::StorageId;

// The events that all runs have together until a plan fits, and then to make it cheaper: a
// fraction of a second.
constexpr int64_t kMostEvents = 500'000;
constexpr int64_t kMostEventsOfCheaper = 200'000;
constexpr int kFewestPlans = 8;

// The bytes that a plan lacks for which no device is large enough.
constexpr int64_t kNoDevice = std::numeric_limits<int64_t>::max();

// A change of a plan.
struct Move {
  TreeNodeId node = {};
  graph::GroupId group =
      graph::kNone;  // kNone: the node becomes a unit, or none
};

struct TriedPlan {
  UnitList units;
  double ms = 0;
  int64_t lacking_bytes = 0;     // 0: it fits
  std::vector<Move> moves = {};  // that were not tried yet, the next one last
  bool is_opened = false;        // it has its moves
};

std::vector<Move> AllMoves(const TraceProblem& problem) {
  std::vector<Move> moves;
  for (const TreeNodeId node : problem.groups.ids()) {
    if (problem.first_of_node[node] == graph::kNone) continue;
    moves.push_back({.node = node});
    for (const graph::GroupId g : problem.groups[node].groups.ids()) {
      const graph::OperatorGroup& group = problem.groups[node].groups[g];
      if (group.rule != graph::GroupRule::kFree) continue;
      moves.push_back({.node = node, .group = g});
    }
  }
  return moves;
}

// Moves and how they change a plan.
class Moves {
 public:
  explicit Moves(const TraceProblem& problem)
      : problem_(problem), moves_(AllMoves(problem)) {}

  const std::vector<Move>& all() const { return moves_; }

  // Returns the plan after the move, or nothing if the move does not apply.
  std::optional<UnitList> After(const UnitList& units, const Move& move) const {
    UnitList changed = units;
    const auto unit = std::ranges::find(changed, ModuleOf(move.node),
                                        &CheckpointedModule::module);
    if (move.group == graph::kNone) {
      if (unit != changed.end()) {
        changed.erase(unit);
      } else {
        EraseNested(changed, move.node);
        changed.push_back(PlainUnit(move.node));
      }
    } else {
      if (unit == changed.end() || unit->decisions.empty()) return std::nullopt;
      GroupFlags is_saved;
      for (const GroupUse use : UsesOfGroups(problem_, move.node, *unit)) {
        is_saved.push_back(use == GroupUse::kSaved);
      }
      is_saved[move.group] = !is_saved[move.group];
      *unit = UnitThatSaves(problem_, move.node, is_saved);
    }
    const std::optional<int> most = problem_.forest.max_units;
    if (most && std::ssize(changed) > *most) return std::nullopt;
    return changed;
  }

 private:
  graph::ModuleId ModuleOf(TreeNodeId node) const {
    return ModuleOf(problem_.candidates[problem_.first_of_node[node]]);
  }

  graph::ModuleId ModuleOf(const CandidateCall& candidate) const {
    return problem_.trace->calls[candidate.call].module;
  }

  CheckpointedModule PlainUnit(TreeNodeId node) const {
    GroupFlags is_saved;
    for (const graph::OperatorGroup& group : problem_.groups[node].groups) {
      is_saved.push_back(group.rule == graph::GroupRule::kSave);
    }
    return UnitThatSaves(problem_, node, is_saved);
  }

  // Removes the units that are called in one of the node, or around one.
  void EraseNested(UnitList& units, TreeNodeId node) const {
    std::set<graph::ModuleId> nested;
    for (const CandidateId c : problem_.candidates.ids()) {
      const CandidateId first = problem_.candidates[c].module_node == node
                                    ? problem_.candidates[c].parent
                                    : CandidateId(graph::kNone);
      for (CandidateId outer = first; outer != graph::kNone;
           outer = problem_.candidates[outer].parent) {
        nested.insert(ModuleOf(problem_.candidates[outer]));
      }
      for (CandidateId outer = problem_.candidates[c].parent;
           outer != graph::kNone; outer = problem_.candidates[outer].parent) {
        if (problem_.candidates[outer].module_node != node) continue;
        nested.insert(ModuleOf(problem_.candidates[c]));
      }
    }
    std::erase_if(units, [&](const CheckpointedModule& unit) {
      return nested.contains(unit.module);
    });
  }

  const TraceProblem& problem_;
  std::vector<Move> moves_;
};

// Returns what makes plans different.
std::vector<int32_t> KeyOf(const UnitList& units) {
  std::map<graph::ModuleId, const CheckpointedModule*> by_module;
  for (const CheckpointedModule& unit : units) by_module[unit.module] = &unit;
  std::vector<int32_t> key;
  for (const auto& [module, unit] : by_module) {
    key.push_back(static_cast<int32_t>(module));
    key.push_back(static_cast<int32_t>(unit->decisions.size()));
    for (const graph::OperatorDecision decision : unit->decisions) {
      key.push_back(static_cast<int32_t>(decision));
    }
    for (const auto& [place, results] : unit->kept_results) {
      key.insert(key.end(), {-1, place});
      key.insert(key.end(), results.begin(), results.end());
    }
  }
  return key;
}

double RecomputedMs(const graph::Trace& trace, const LivedStep& step) {
  double ms = 0;
  for (const graph::Simulation::Step& ran : step.steps) {
    if (ran.redone != graph::kNone) ms += trace.operators[ran.op].runtime_ms;
  }
  return ms;
}

class MoveSearch {
 public:
  MoveSearch(const TraceProblem& problem, const DeviceGoal& goal,
             const std::function<bool()>& is_stopped)
      : problem_(problem),
        goal_(goal),
        is_stopped_(is_stopped),
        moves_(problem) {}

  MovesAnswer Run(const std::vector<UnitList>& starts) && {
    for (const UnitList& units : starts) Try(units);
    TryPlainPlans(problem_, [&](const UnitList& units) {
      Try(units);
      return Fits() || IsOver();
    });
    while (!Fits() && !IsOver()) {
      const std::optional<size_t> next = Next();
      if (!next) break;
      TryMoves(*next);
    }
    if (!Fits()) return {.units = {}, .least_device_bytes = LeastDevice()};
    events_left_ = kMostEventsOfCheaper;
    LeaveOutUnits();
    MakeCheaper();
    return {.units = plans_[best_].units, .least_device_bytes = {}};
  }

 private:
  bool Fits() const {
    return !plans_.empty() && plans_[best_].lacking_bytes == 0;
  }

  std::optional<int64_t> LeastDevice() const {
    if (plans_.empty() || plans_[best_].lacking_bytes == kNoDevice) {
      return std::nullopt;
    }
    return goal_.device_bytes + plans_[best_].lacking_bytes;
  }

  bool IsOver() const {
    const bool is_spent =
        events_left_ <= 0 && plans_.size() >= static_cast<size_t>(kFewestPlans);
    return is_spent || is_stopped_();
  }

  // Runs a plan that was not tried before, if PyTorch takes it. Returns whether it ran.
  bool Try(const UnitList& units) {
    if (!keys_.insert(KeyOf(units)).second) return false;
    try {
      const LivedStep step = problem_.simulator.Live(units);
      const graph::TrainingRun run = RunOfStep(step);
      const int64_t device = goal_.device_bytes;
      const graph::RunOutcome outcome =
          graph::RunOnDevice(run, goal_.setting.config, device);
      events_left_ -= static_cast<int64_t>(outcome.events);
      TriedPlan plan{.units = units, .ms = RecomputedMs(*problem_.trace, step)};
      if (!outcome.Fits()) {
        const auto least =
            graph::FindLeastDevice(run, goal_.setting.config, device + 1);
        events_left_ -= least ? least->events : 0;
        plan.lacking_bytes = least ? least->bytes - device : kNoDevice;
      }
      plans_.push_back(std::move(plan));
    } catch (const InputError&) {
      return false;
    }
    if (IsBetter(plans_.back(), plans_[best_])) best_ = plans_.size() - 1;
    return true;
  }

  static bool IsBetter(const TriedPlan& a, const TriedPlan& b) {
    return std::pair(a.lacking_bytes, a.ms) < std::pair(b.lacking_bytes, b.ms);
  }

  graph::TrainingRun RunOfStep(const LivedStep& step) const {
    return graph::MakeTrainingRun(*problem_.trace, step,
                                  RunOptionsOf(goal_.setting));
  }

  // Returns the plan that needs the smallest device of those that have moves left.
  std::optional<size_t> Next() const {
    std::optional<size_t> next;
    for (size_t k = 0; k < plans_.size(); ++k) {
      if (plans_[k].is_opened && plans_[k].moves.empty()) continue;
      if (!next || IsBetter(plans_[k], plans_[*next])) next = k;
    }
    return next;
  }

  // Tries moves of a plan until one leads to a plan that needs less.
  void TryMoves(size_t k) {
    if (!plans_[k].is_opened) {
      plans_[k].moves = MovesByHoles(plans_[k].units);
      plans_[k].is_opened = true;
    }
    bool is_better = false;
    while (!is_better && !plans_[k].moves.empty() && !IsOver()) {
      const Move move = plans_[k].moves.back();
      plans_[k].moves.pop_back();
      const auto units = moves_.After(plans_[k].units, move);
      is_better = units && Try(*units) &&
                  plans_.back().lacking_bytes < plans_[k].lacking_bytes;
    }
  }

  // Returns all moves, last the ones of modules beside the largest holes.
  std::vector<Move> MovesByHoles(const UnitList& units) const {
    const graph::TrainingRun run = RunOfStep(problem_.simulator.Live(units));
    const graph::AllocatorConfig& config = goal_.setting.config;
    const graph::RunOutcome outcome =
        graph::RunOnDevice(run, config, goal_.device_bytes);
    const graph::PeakLayout layout =
        graph::LayoutAtPeak(run, config, goal_.device_bytes, outcome);
    // The bytes of holes beside results of a candidate.
    graph::IndexedVector<TreeNodeId, int64_t> bytes(problem_.groups.size(), 0);
    for (const graph::Hole& hole : layout.holes) {
      for (const int64_t event : hole.neighbours) {
        if (event < 0) continue;
        const StorageId storage = run.StorageAt(event);
        if (storage == graph::kNone || storage == graph::kOfDdp) continue;
        for (const CandidateId c : problem_.makers_of[storage]) {
          bytes[problem_.candidates[c].module_node] += hole.bytes;
        }
      }
    }
    std::vector<Move> moves = moves_.all();
    std::ranges::stable_sort(
        moves, {}, [&](const Move& move) { return bytes[move.node]; });
    return moves;
  }

  // Leaves out units of the best plan as long as it fits: half of them at once, then a quarter,
  // down to single ones.
  void LeaveOutUnits() {
    for (size_t count = plans_[best_].units.size(); count > 0; count /= 2) {
      for (size_t first = 0; first < plans_[best_].units.size() && !IsOver();) {
        UnitList fewer = plans_[best_].units;
        const auto begin = fewer.begin() + static_cast<ptrdiff_t>(first);
        const size_t rest = fewer.size() - first;
        fewer.erase(begin,
                    begin + static_cast<ptrdiff_t>(std::min(count, rest)));
        const size_t before = best_;
        Try(fewer);
        if (best_ == before) first += count;
      }
    }
  }

  // Makes changes to the best plan after which it fits and recomputes less.
  void MakeCheaper() {
    for (bool is_better = true; is_better && !IsOver();) {
      is_better = false;
      for (const Move& move : moves_.all()) {
        if (IsOver()) return;
        const size_t before = best_;
        const auto units = moves_.After(plans_[best_].units, move);
        if (!units || MsOf(*units) >= plans_[best_].ms) continue;
        Try(*units);
        is_better |= best_ != before;
      }
    }
  }

  // Returns what a plan recomputes; infinity if PyTorch does not take it.
  double MsOf(const UnitList& units) const {
    try {
      return problem_.simulator.Simulate(units).recompute_ms;
    } catch (const InputError&) {
      return std::numeric_limits<double>::infinity();
    }
  }

  const TraceProblem& problem_;
  const DeviceGoal& goal_;
  const std::function<bool()>& is_stopped_;
  const Moves moves_;
  int64_t events_left_ = kMostEvents;
  std::set<std::vector<int32_t>> keys_;
  std::vector<TriedPlan> plans_;
  size_t best_ = 0;
};

}  // namespace

MovesAnswer FindByMoves(const TraceProblem& problem, const DeviceGoal& goal,
                        const std::vector<UnitList>& starts,
                        const std::function<bool()>& is_stopped) {
  return MoveSearch(problem, goal, is_stopped).Run(starts);
}

}  // namespace acplan::problems
