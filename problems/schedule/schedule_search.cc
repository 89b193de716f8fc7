#include "problems/schedule/schedule_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "problems/schedule/moment_model.h"
#include "problems/schedule/schedule_repair.h"
#include "solver/cbc_solver.h"

// Idea. A model that counts memory at a few moments (moment_model.h) is small,
// and its optimum a bound. The search runs the model's schedule. If it is over
// the budget, these moments are added and the model is solved anew; if it is
// not, it is optimal, since it costs at most the bound. As moments are only
// added, and there are finitely many, this ends. Meanwhile the models'
// schedules are repaired (schedule_repair.h) so that they keep the budget. So
// there is an answer at any time, and models start from it.
//
// Proof. Rows of first runs hold for every schedule within the budget. Rows of
// inner moments hold for every schedule whose stages run each node at most
// once, in order, as the problem requires. So the optimum of a model is at most
// the problem's.

namespace acplan::problems {

using graph::ScheduleGraph;
using solver::MilpStatus;
using solver::SearchStatus;
using solver::StoppedBy;

namespace {

// The share of the remaining time for one model.
constexpr double kModelShare = 0.5;
// The number of tries at better schedules before the first model and between
// two, and the seconds for them.
constexpr int kFirstTries = 3;
constexpr int kTries = 30;
constexpr double kFirstSeconds = 5;
constexpr double kWhileSeconds = 1;
// The most rounds without a better schedule, if nothing else ends them.
constexpr int kMostStale = 100;
// The most stages that get new moments after a model.
constexpr size_t kMostStages = 4;
// The shares of their largest size by which rows of bytes are wider. If sums
// lie within CBC's tolerances of the first, CBC may fail, and the others are
// tried. Schedules found and bounds proven before remain valid.
constexpr double kWider[] = {1e-6, 3e-5, 1e-3};
// Objectives that differ by less are the same; CBC's tolerance.
constexpr double kTolerance = 1e-6;

// A run that is over the budget.
struct Excess {
  int64_t bytes;
  int32_t node;
  int32_t stage;
};

// Returns the runs over the budget, the most bytes first.
std::vector<Excess> ExcessesOf(const ScheduleRun& run,
                               const StagedSchedule& schedule, int64_t budget) {
  std::vector<Excess> all;
  size_t step = 0;
  for (int32_t s = 0; s < std::ssize(schedule.repeats); ++s) {
    std::vector<int32_t> nodes = schedule.repeats[s];
    nodes.push_back(s);
    for (const int32_t n : nodes) {
      const int64_t bytes = run.live_bytes[step++];
      if (bytes > budget)
        all.push_back({.bytes = bytes, .node = n, .stage = s});
    }
  }
  std::ranges::stable_sort(all, std::greater(), &Excess::bytes);
  return all;
}

// The best schedule so far, with its proven bound.
class BestSchedule {
 public:
  BestSchedule(const ScheduleGraph& graph, const ScheduleQuestion& question)
      : graph_(graph),
        clock_(question.limits),
        repair_(graph, question.budget_bytes, question.limits.seed) {
    if (question.start) Take(*question.start);
  }

  ScheduleAnswer& answer() { return answer_; }
  const solver::LimitClock& clock() const { return clock_; }

  void Take(StagedSchedule schedule) {
    const double ms = RecomputeMs(graph_, schedule);
    if (answer_.schedule && ms >= answer_.recompute_ms) return;
    answer_.schedule = std::move(schedule);
    answer_.recompute_ms = ms;
    Report();
  }

  // Repairs a schedule that may be over the budget, and takes the result.
  void TakeRepaired(StagedSchedule schedule) {
    if (auto repaired = repair_.Repair(std::move(schedule), clock_))
      Take(std::move(*repaired));
  }

  void RaiseBound(double bound) {
    answer_.bound_ms = std::max(answer_.bound_ms, bound);
    Report();
  }

  // Tries to find better schedules, or a first one.
  void Improve(int tries, double seconds) {
    solver::SearchLimits limits = clock_.Remaining();
    limits.time_limit_s = std::min(limits.time_limit_s, seconds);
    const solver::LimitClock clock(limits);
    for (int i = 0; i < tries && !IsProven(); ++i) {
      if (clock.Stop() != StoppedBy::kNothing) return;
      ++answer_.tries;
      if (answer_.schedule) {
        StagedSchedule next = *answer_.schedule;
        repair_.Improve(next, clock);
        answer_.recompute_ms = RecomputeMs(graph_, next);
        answer_.schedule = std::move(next);
      } else if (auto first =
                     repair_.Repair(WithoutRecomputation(graph_), clock)) {
        Take(std::move(*first));
      }
    }
    Report();
  }

  bool IsProven() const {
    return answer_.schedule &&
           answer_.recompute_ms - answer_.bound_ms <=
               std::max(clock_.limits().gap, kTolerance) * answer_.recompute_ms;
  }

  bool IsDone() const {
    return IsProven() || clock_.Stop() != StoppedBy::kNothing;
  }

  // Sets the result of the search, unless it is infeasible.
  void Conclude() {
    answer_.stopped_by = clock_.Stop();
    if (answer_.stopped_by == StoppedBy::kNothing)
      answer_.stopped_by = StoppedBy::kUnproven;
    if (!answer_.schedule) {
      answer_.status = SearchStatus::kNoSolution;
      return;
    }
    answer_.bound_ms = std::min(answer_.bound_ms, answer_.recompute_ms);
    const double open = answer_.recompute_ms - answer_.bound_ms;
    if (open <= kTolerance * answer_.recompute_ms) {
      answer_.status = SearchStatus::kOptimal;
      answer_.bound_ms = answer_.recompute_ms;
      answer_.stopped_by = StoppedBy::kNothing;
      return;
    }
    answer_.status = SearchStatus::kFeasible;
    if (IsProven()) answer_.stopped_by = StoppedBy::kGap;
  }

 private:
  void Report() const {
    if (!clock_.limits().on_progress) return;
    clock_.limits().on_progress(
        {.best = answer_.schedule ? answer_.recompute_ms
                                  : std::numeric_limits<double>::infinity(),
         .bound = answer_.bound_ms,
         .nodes = answer_.tries,
         .seconds = clock_.Seconds()});
  }

  const ScheduleGraph& graph_;
  solver::LimitClock clock_;
  ScheduleRepair repair_;
  ScheduleAnswer answer_;
};

class ScheduleSearch {
 public:
  ScheduleSearch(const ScheduleGraph& graph, const ScheduleQuestion& question)
      : graph_(graph), budget_(question.budget_bytes), best_(graph, question) {}

  ScheduleAnswer Solve() {
    ScheduleAnswer& answer = best_.answer();
    const int64_t most = std::ranges::max(NeededBytes(graph_));
    if (most > budget_) {
      answer.status = SearchStatus::kInfeasible;
      answer.least_bytes = most;
      return std::move(answer);
    }
    const StagedSchedule once = WithoutRecomputation(graph_);
    const ScheduleRun run = RunSchedule(graph_, once);
    if (run.peak_bytes <= budget_) {
      answer.schedule = once;
      answer.recompute_ms = 0;
      answer.status = SearchStatus::kOptimal;
      return std::move(answer);
    }
    AddMoments(run, once, 1);
    best_.Improve(kFirstTries, kFirstSeconds);
    while (!best_.IsDone() && SolveModel()) {
    }
    if (answer.status == SearchStatus::kInfeasible) return std::move(answer);
    Search();
    best_.Conclude();
    return std::move(answer);
  }

 private:
  // Spends the remaining time on better schedules. Without a time limit it ends
  // after many rounds without a better one.
  void Search() {
    const bool has_end = std::isfinite(best_.clock().limits().time_limit_s);
    double last = std::numeric_limits<double>::infinity();
    for (int stale = 0; !best_.IsDone() && (has_end || stale < kMostStale);
         ++stale) {
      best_.Improve(kTries, kWhileSeconds);
      if (!best_.answer().schedule || best_.answer().recompute_ms >= last)
        continue;
      last = best_.answer().recompute_ms;
      stale = 0;
    }
  }

  // Solves a model and adds moments. Returns whether there is more to solve,
  // which is so if there were any moments to add.
  bool SolveModel() {
    best_.answer().moments =
        static_cast<int>(moments_.first_runs.size() + moments_.inner.size());
    for (const double wider : kWider) {
      if (const std::optional<bool> has_more = SolveModel(wider))
        return *has_more;
    }
    return false;
  }

  // Returns nullopt if CBC failed.
  std::optional<bool> SolveModel(double wider) {
    MomentModel model(graph_, budget_, moments_, wider);
    ScheduleAnswer& answer = best_.answer();
    while (true) {
      solver::MilpSolution solution;
      try {
        solution = Ask(model);
      } catch (const solver::CbcFailure& failure) {
        if (failure.x().empty() || !model.CutOff(failure.x()))
          return std::nullopt;
        continue;
      }
      if (solution.status == MilpStatus::kInfeasible) {
        answer.status = SearchStatus::kInfeasible;
        return false;
      }
      if (std::isfinite(solution.bound))
        best_.RaiseBound(model.Rounded(solution.bound) * model.time_unit());
      if (solution.x.empty()) return false;
      if (!model.CutOff(solution.x))
        return TakeSolution(model.Decode(solution.x));
      best_.TakeRepaired(model.Decode(solution.x));
      if (best_.IsDone()) return false;
    }
  }

  solver::MilpSolution Ask(const MomentModel& model) {
    ScheduleAnswer& answer = best_.answer();
    ++answer.models;
    solver::CbcOptions options{.limits = best_.clock().Remaining()};
    options.limits.time_limit_s *= kModelShare;
    options.limits.on_progress = {};
    if (answer.schedule) options.warm_start = model.Encode(*answer.schedule);
    return SolveWithCbc(model.program(), options);
  }

  bool TakeSolution(StagedSchedule schedule) {
    const ScheduleRun run = RunSchedule(graph_, schedule);
    const bool has_more = AddMoments(run, schedule, kMostStages);
    best_.TakeRepaired(std::move(schedule));
    best_.Improve(kTries, kWhileSeconds);
    return has_more;
  }

  // Adds the moments at which a schedule is most over the budget, of a few
  // stages that are not near to each other. Returns whether there were any.
  bool AddMoments(const ScheduleRun& run, const StagedSchedule& schedule,
                  size_t most_stages) {
    const std::vector<Excess> all = ExcessesOf(run, schedule, budget_);
    const auto least_distance = static_cast<int32_t>(graph_.nodes.size() / 50);
    std::vector<int32_t> stages;
    for (const Excess& excess : all) {
      if (stages.size() >= most_stages) break;
      const auto is_near = [&](int32_t s) {
        return std::abs(s - excess.stage) <= least_distance;
      };
      if (std::ranges::any_of(stages, is_near)) continue;
      bool is_new = false;
      if (excess.node == excess.stage) {
        is_new = AddFirstRun(excess.stage);
      } else {
        for (const Excess& other : all)
          if (other.stage == excess.stage && other.node != other.stage)
            is_new = AddInner(other.stage, other.node) || is_new;
      }
      if (is_new) stages.push_back(excess.stage);
    }
    return !stages.empty();
  }

  bool AddFirstRun(int32_t stage) {
    if (stage < 0 || stage + 1 >= std::ssize(graph_.nodes)) return false;
    return moments_.first_runs.insert(stage).second;
  }

  bool AddInner(int32_t stage, int32_t node) {
    AddFirstRun(stage);
    AddFirstRun(stage - 1);
    return moments_.inner.insert({.stage = stage, .node = node}).second;
  }

  const ScheduleGraph& graph_;
  int64_t budget_;
  BestSchedule best_;
  Moments moments_;
};

}  // namespace

ScheduleAnswer SolveSchedule(const ScheduleGraph& graph,
                             const ScheduleQuestion& question) {
  return ScheduleSearch(graph, question).Solve();
}

}  // namespace acplan::problems
