#include "problems/schedule/schedule_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "problems/schedule/moment_model.h"
#include "problems/schedule/schedule_repair.h"
#include "solver/cbc_solver.h"

// Idea. A model that counts memory at a few moments (moment_model.h) is small, and its
// optimum a bound. Its schedule is run: where it is over the budget, these moments are
// added and the model is solved anew; where it is not, it is optimal, since it costs no
// more than the bound. As moments are only added, and there are finitely many, this ends.
// Meanwhile what the models propose is repaired (schedule_repair.h) into schedules that
// keep the budget, so that there is an answer at any time, and models start from it.
//
// Proof. Rows of first runs hold for every schedule within the budget; those of inner
// moments for every one whose stages run each node at most once, in order, as the
// problem says. So the optimum of a model is no more than the problem's.

namespace acplan::problems {

using graph::ScheduleGraph;
using solver::MilpStatus;
using solver::SearchStatus;
using solver::StoppedBy;

namespace {

// Of the time: for a first schedule and tries to better it, and for one model.
constexpr double kFirstShare = 0.1;
constexpr double kModelShare = 0.5;
// Tries at better schedules between two models.
constexpr int kTries = 30;
// Stages that get new moments after a model.
constexpr size_t kMostStages = 4;
// Objectives that differ by less are the same; CBC's tolerance.
constexpr double kTolerance = 1e-6;

// A run that is over the budget.
struct Excess {
  int64_t bytes;
  int32_t node;
  int32_t stage;
};

// The runs that are, the most bytes first.
std::vector<Excess> ExcessesOf(const ScheduleRun& run,
                               const StagedSchedule& schedule, int64_t budget) {
  std::vector<Excess> all;
  size_t step = 0;
  for (int32_t s = 0; s < std::ssize(schedule.again); ++s) {
    std::vector<int32_t> nodes = schedule.again[s];
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

class ScheduleSearch {
 public:
  ScheduleSearch(const ScheduleGraph& graph, const ScheduleQuestion& question)
      : graph_(graph),
        budget_(question.budget_bytes),
        clock_(question.limits),
        repair_(graph, question.budget_bytes, question.limits.seed) {
    if (question.start) Take(*question.start);
  }

  ScheduleAnswer Solve() {
    const std::vector<int64_t> needed = NeededBytes(graph_);
    const int64_t most = *std::ranges::max_element(needed);
    if (most > budget_) {
      answer_.status = SearchStatus::kInfeasible;
      answer_.least_bytes = most;
      return std::move(answer_);
    }
    const ScheduleRun run = RunSchedule(graph_, WithoutRecomputation(graph_));
    if (run.peak_bytes <= budget_) {
      answer_.schedule.reset();
      Take(WithoutRecomputation(graph_));
      answer_.status = SearchStatus::kOptimal;
      return std::move(answer_);
    }
    AddMoments(run, WithoutRecomputation(graph_), 1);
    FindFirst();
    while (!IsDone() && SolveModel()) {
    }
    if (answer_.status == SearchStatus::kInfeasible) return std::move(answer_);
    while (!IsDone()) Improve();
    Conclude();
    return std::move(answer_);
  }

 private:
  void Take(StagedSchedule schedule) {
    const double ms = RecomputeMs(graph_, schedule);
    if (answer_.schedule && ms >= answer_.recompute_ms) return;
    answer_.schedule = std::move(schedule);
    answer_.recompute_ms = ms;
    Report();
  }

  void Report() const {
    if (!clock_.limits().on_progress) return;
    clock_.limits().on_progress(
        {.best = answer_.schedule ? answer_.recompute_ms
                                  : std::numeric_limits<double>::infinity(),
         .bound = answer_.bound_ms,
         .nodes = answer_.tries,
         .seconds = clock_.Seconds()});
  }

  bool IsProven() const {
    return answer_.schedule &&
           answer_.recompute_ms - answer_.bound_ms <=
               std::max(clock_.limits().gap, kTolerance) * answer_.recompute_ms;
  }

  bool IsDone() const {
    return IsProven() || clock_.Stop() != StoppedBy::kNothing;
  }

  void FindFirst() {
    solver::SearchLimits limits = clock_.limits();
    limits.time_limit_s = std::min(limits.time_limit_s, 60.0) * kFirstShare;
    const solver::LimitClock clock(limits);
    TakeRepaired(WithoutRecomputation(graph_), clock);
    for (int i = 0; i < kTries && clock.Stop() == StoppedBy::kNothing; ++i)
      ImproveWith(clock);
  }

  void TakeRepaired(StagedSchedule schedule, const solver::LimitClock& clock) {
    if (auto repaired = repair_.Repair(std::move(schedule), clock))
      Take(std::move(*repaired));
  }

  void Improve() { ImproveWith(clock_); }

  void ImproveWith(const solver::LimitClock& clock) {
    ++answer_.tries;
    if (!answer_.schedule) {
      TakeRepaired(WithoutRecomputation(graph_), clock);
      return;
    }
    StagedSchedule next = *answer_.schedule;
    if (repair_.Improve(next, clock)) {
      Take(std::move(next));
    } else {
      answer_.schedule = std::move(next);
    }
  }

  // Solves a model and adds moments; returns whether there is more to solve.
  bool SolveModel() {
    const MomentModel model(graph_, budget_, moments_);
    ++answer_.models;
    answer_.moments =
        static_cast<int>(moments_.first_runs.size() + moments_.inner.size());
    solver::CbcOptions options{.limits = clock_.Left()};
    if (std::isfinite(options.limits.time_limit_s))
      options.limits.time_limit_s *= kModelShare;
    options.limits.on_progress = {};
    if (answer_.schedule) options.warm_start = model.Encode(*answer_.schedule);
    const solver::MilpSolution solution =
        SolveWithCbc(model.program(), options);
    if (solution.status == MilpStatus::kInfeasible) {
      answer_.status = SearchStatus::kInfeasible;
      return false;
    }
    if (std::isfinite(solution.bound))
      RaiseBound(model.Rounded(solution.bound) * model.time_unit());
    if (solution.x.empty()) return false;
    return TakeSolution(model.Decode(solution.x));
  }

  void RaiseBound(double bound) {
    answer_.bound_ms = std::max(answer_.bound_ms, bound);
    if (answer_.schedule)
      answer_.bound_ms = std::min(answer_.bound_ms, answer_.recompute_ms);
    Report();
  }

  bool TakeSolution(StagedSchedule schedule) {
    const ScheduleRun run = RunSchedule(graph_, schedule);
    const bool has_more = AddMoments(run, schedule, kMostStages);
    if (run.peak_bytes <= budget_) repair_.Prune(schedule);
    TakeRepaired(std::move(schedule), clock_);
    for (int i = 0; i < kTries && !IsDone(); ++i) Improve();
    return has_more;
  }

  // Adds the moments at which a schedule is most over the budget, of a few stages that are
  // not near to each other; returns whether there were any.
  bool AddMoments(const ScheduleRun& run, const StagedSchedule& schedule,
                  size_t most_stages) {
    const std::vector<Excess> all = ExcessesOf(run, schedule, budget_);
    const auto apart = static_cast<int32_t>(graph_.nodes.size() / 50);
    std::vector<int32_t> stages;
    for (const Excess& excess : all) {
      if (stages.size() >= most_stages) break;
      const auto is_near = [&](int32_t s) {
        return std::abs(s - excess.stage) <= apart;
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

  void Conclude() {
    const bool is_found = answer_.schedule.has_value();
    answer_.stopped_by = clock_.Stop();
    if (!is_found) {
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

  const ScheduleGraph& graph_;
  int64_t budget_;
  solver::LimitClock clock_;
  ScheduleRepair repair_;
  Moments moments_;
  ScheduleAnswer answer_;
};

}  // namespace

ScheduleAnswer SolveSchedule(const ScheduleGraph& graph,
                             const ScheduleQuestion& question) {
  return ScheduleSearch(graph, question).Solve();
}

}  // namespace acplan::problems
