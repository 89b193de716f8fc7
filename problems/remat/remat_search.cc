#include "problems/remat/remat_search.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "graph/base/input_error.h"
#include "problems/remat/decision_graph.h"
#include "problems/remat/remat_labels.h"
#include "problems/remat/remat_prices.h"
#include "solver/lp_solver.h"
#include "solver/milp.h"

// Idea. Moments that no good plan fills up need not be looked at. So the search begins
// with the moment at which most is live if all is kept, as the only row, and adds the
// moments at which plans that it finds break the budget. With the rows of one round:
//
// 1. With a price of a byte at each row in place of the budget, the best plan is a
//    shortest path of the decision graph, and its cost, less that of the budget, is a
//    bound. Cutting planes find the best prices, as in problems/trace/schedule_bound.cc.
// 2. Labels enumerate the paths within the rows that cost less than the best plan so far;
//    with these prices few beginnings of paths are left.
//
// Every path is simulated, and the cheapest that keeps the budget is the best plan. A row
// at which an operator runs again has more room than it needs where the operator does not,
// so that prices see little of it: where labels are too many, plans are split into those in
// which it does, whose row has no such room, and the others, which have no such row. Rows
// are moments of the step, and paths take at a row what the simulation finds there at
// least, so that without any path cheaper than the best plan, there is no cheaper plan.

namespace acplan::problems {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNear = 1e-7;      // bound and planes, relative
constexpr double kRounding = 1e-9;  // of sums, relative
constexpr int64_t kFirstLabels = 1000;
constexpr int64_t kMostLabels = 1000000;
constexpr int64_t kPaths = 40;

// A path, for the program that finds prices.
struct Plane {
  double ms = 0;
  std::vector<double> excess = {};  // a row: bytes over the room, by the budget
};

class Search {
 public:
  Search(const RematProblem& problem, const RematQuestion& question)
      : problem_(problem),
        question_(question),
        simulator_(*problem.graph),
        clock_(question.limits),
        all_ms_(problem.AllMs()) {
    answer_.least_peak_seen = std::numeric_limits<int64_t>::max();
  }

  RematAnswer Run() {
    Find();
    answer_.seconds = clock_.Seconds();
    answer_.moments = std::ssize(rows_);
    const bool is_found = best_.has_value();
    if (is_found) answer_.run = *best_;
    const double best = is_found ? best_->recompute_ms : kInfinity;
    const double rounding = kRounding * std::max(1.0, is_found ? best : 0);
    const bool is_proven = is_found && answer_.bound_ms >= best - rounding;
    if (is_found) {
      answer_.bound_ms = std::min(answer_.bound_ms, best);
      answer_.status = is_proven ? solver::SearchStatus::kOptimal
                                 : solver::SearchStatus::kFeasible;
      if (is_proven) answer_.stopped_by = solver::StoppedBy::kNothing;
      const bool is_near = answer_.bound_ms >= CutOff();
      if (!is_proven && is_near) answer_.stopped_by = solver::StoppedBy::kGap;
    } else {
      answer_.status = answer_.bound_ms == kInfinity
                           ? solver::SearchStatus::kInfeasible
                           : solver::SearchStatus::kNoSolution;
    }
    return std::move(answer_);
  }

 private:
  // Plans that meet conditions.
  struct Part {
    std::vector<RematCondition> conditions = {};
    double bound_ms = 0;
  };
  enum class Outcome : char { kClosed, kSplit, kStopped };

  // Until it is proven, or a limit strikes.
  void Find() {
    if (!question_.start.empty()) Try(question_.start);
    Wish(Try(simulator_.AllKept()));
    if (IsDone()) return;
    AddRows();
    std::vector<Part> open = {Part()};
    while (!open.empty()) {
      const auto least = std::ranges::min_element(open, {}, &Part::bound_ms);
      Part part = std::move(*least);
      open.erase(least);
      answer_.bound_ms = std::max(answer_.bound_ms, part.bound_ms);
      if (IsDone()) return;
      const Outcome outcome = Solve(part);
      if (outcome == Outcome::kStopped) {
        open.push_back(std::move(part));
        answer_.bound_ms = std::ranges::min(open, {}, &Part::bound_ms).bound_ms;
        return;
      }
      if (outcome == Outcome::kSplit) {
        const RematMoment moment = *MomentToSplitAt(part);
        for (const bool is_met : {true, false}) {
          open.push_back(part);
          open.back().conditions.push_back(
              {.moment = moment, .is_met = is_met});
        }
      }
      if (best_ && question_.is_any_enough) return;
    }
    answer_.bound_ms = kInfinity;
  }

  // Looks for better plans in a part, and raises its bound.
  Outcome Solve(Part& part) {
    for (;;) {
      const DecisionGraph graph =
          BuildDecisionGraph(problem_, RowsOf(part), question_.budget_bytes,
                             {.conditions = part.conditions});
      if (graph.is_restricted) is_restricted_ = true;
      if (!HasPath(graph)) {
        if (!is_restricted_) return Outcome::kClosed;
        answer_.stopped_by = solver::StoppedBy::kUnproven;
        return Outcome::kStopped;
      }
      if (!FindPrices(graph, part)) return Outcome::kStopped;
      if (IsClosed(part)) return Outcome::kClosed;
      if (AddRows()) continue;
      const std::optional<Outcome> outcome = Enumerate(graph, part);
      if (outcome) return *outcome;
    }
  }

  // Rows that are not those of moments that the part does without.
  std::vector<RematMoment> RowsOf(const Part& part) const {
    std::vector<RematMoment> rows;
    for (const RematMoment& row : rows_) {
      const bool is_absent = std::ranges::any_of(
          part.conditions, [&](const RematCondition& condition) {
            return condition.moment == row && !condition.is_met;
          });
      if (!is_absent) rows.push_back(row);
    }
    return rows;
  }

  std::optional<RematMoment> MomentToSplitAt(const Part& part) const {
    for (const RematMoment& row : rows_) {
      const bool is_known = std::ranges::any_of(
          part.conditions, [&](const RematCondition& condition) {
            return condition.moment == row;
          });
      if (row.kind == RematMoment::Kind::kAgain && !is_known) return row;
    }
    return std::nullopt;
  }

  // What a plan has to cost less than.
  double CutOff() const {
    if (!best_) return kInfinity;
    const double best = best_->recompute_ms;
    return best - std::max(question_.limits.gap * best,
                           kRounding * std::max(1.0, best));
  }

  bool IsDone() const {
    if (best_ && question_.is_any_enough) return true;
    return answer_.bound_ms >= CutOff();
  }
  bool IsClosed(const Part& part) const {
    if (best_ && question_.is_any_enough) return true;
    return part.bound_ms >= CutOff();
  }

  bool IsStopped() {
    if (question_.limits.on_progress) {
      question_.limits.on_progress(
          {.best = best_ ? best_->recompute_ms : kInfinity,
           .bound = answer_.bound_ms,
           .nodes = answer_.labels,
           .seconds = clock_.Seconds()});
    }
    const solver::StoppedBy reason = clock_.Stop();
    if (reason == solver::StoppedBy::kNothing) return false;
    answer_.stopped_by = reason;
    return true;
  }

  void Raise(Part& part, double ms) const {
    if (is_restricted_) return;
    if (ms > all_ms_ * (1 + kRounding) + kRounding) ms = kInfinity;
    part.bound_ms = std::max(part.bound_ms, ms);
  }

  static bool HasPath(const DecisionGraph& graph) {
    const LevelValues rests =
        CheapestRests(graph, std::vector<double>(graph.rows.size(), 0));
    return rests.front().front() < kInfinity;
  }

  // Simulates a plan. Returns the moment at which it breaks the budget most.
  std::optional<RematMoment> Try(const std::vector<char>& kept) {
    graph::JointRun run;
    try {
      run = simulator_.Run(kept);
    } catch (const InputError&) {
      return std::nullopt;  // of a relaxed path
    }
    if (run.peak_bytes < answer_.least_peak_seen) {
      answer_.least_peak_seen = run.peak_bytes;
      answer_.least_kept = run.kept;
    }
    if (run.peak_bytes > question_.budget_bytes)
      return MomentOf(problem_, run, run.peak_step);
    if (!best_ || run.recompute_ms < best_->recompute_ms ||
        (run.recompute_ms == best_->recompute_ms &&
         run.peak_bytes < best_->peak_bytes)) {
      best_ = std::move(run);
    }
    return std::nullopt;
  }

  void Wish(const std::optional<RematMoment>& moment) {
    if (!moment) return;
    const auto is_same = [&](const RematMoment& row) { return row == *moment; };
    if (std::ranges::none_of(rows_, is_same) &&
        std::ranges::none_of(wished_, is_same)) {
      wished_.push_back(*moment);
    }
  }

  // Adds the moments at which plans broke the budget. Returns whether there are any.
  bool AddRows() {
    rows_.insert(rows_.end(), wished_.begin(), wished_.end());
    return !std::exchange(wished_, {}).empty();
  }

  double Scale() const {
    return static_cast<double>(std::max<int64_t>(question_.budget_bytes, 1));
  }

  Plane PlaneOf(const DecisionGraph& graph, const DecisionPath& path) const {
    const PathSums sums = SumsOf(graph, path);
    Plane plane{.ms = sums.ms};
    for (size_t row = 0; row < sums.bytes.size(); ++row) {
      plane.excess.push_back(
          static_cast<double>(sums.bytes[row] - graph.room[row]) / Scale());
    }
    return plane;
  }

  // The prices at which the planes are highest, and which planes are so high there.
  struct Prices {
    double ms = 0;
    double missing = 0;  // of room, of the best mixture
    std::vector<double> of_rows = {};
    std::vector<double> shares = {};
  };

  std::optional<Prices> HighestPlanes(const std::vector<Plane>& planes,
                                      size_t rows, double most) const {
    solver::Milp program;
    for (size_t row = 0; row < rows; ++row) program.AddRow({.upper = 0});
    program.AddRow({.lower = 1, .upper = 1});
    for (const Plane& plane : planes) {
      const int column = program.AddColumn({.cost = plane.ms});
      for (size_t row = 0; row < rows; ++row)
        program.rows[row].terms.push_back({column, plane.excess[row]});
      program.rows[rows].terms.push_back({column, 1});
    }
    const int missing = program.AddColumn({.cost = most});
    for (size_t row = 0; row < rows; ++row)
      program.rows[row].terms.push_back({missing, -1});
    const solver::LpSolution solution = solver::SolveLp(program);
    if (solution.status != solver::LpStatus::kOptimal) return std::nullopt;
    Prices prices{.ms = solution.objective, .missing = solution.x.back()};
    for (size_t row = 0; row < rows; ++row)
      prices.of_rows.push_back(std::max(0.0, -solution.row_duals[row]));
    prices.shares.assign(solution.x.begin(), solution.x.end() - 1);
    return prices;
  }

  // Finds the best prices of the rows. Returns false where a limit strikes.
  bool FindPrices(const DecisionGraph& graph, Part& part) {
    const size_t rows = graph.rows.size();
    std::vector<Plane> planes;
    std::vector<std::optional<RematMoment>> breaks;
    prices_.assign(rows, 0);
    double highest = -kInfinity;
    double most = 10 * all_ms_ + 1;
    for (;;) {
      std::vector<double> of_bytes;
      double of_room = 0;
      for (size_t row = 0; row < rows; ++row) {
        of_bytes.push_back(prices_[row] / Scale());
        of_room += of_bytes[row] * static_cast<double>(graph.room[row]);
      }
      const LevelValues rests = CheapestRests(graph, of_bytes);
      const double bound = rests.front().front() - of_room;
      const bool is_higher = bound > highest;
      if (is_higher) {
        highest = bound;
        best_prices_ = of_bytes;
        Raise(part, bound - kRounding * (std::abs(rests.front().front()) +
                                         std::abs(of_room)));
      }
      ++answer_.cuts;
      const DecisionPath path = CheapestPath(graph, of_bytes, rests);
      Plane plane = PlaneOf(graph, path);
      const bool is_new = std::ranges::none_of(planes, [&](const Plane& p) {
        return p.ms == plane.ms && p.excess == plane.excess;
      });
      if (is_new) {
        planes.push_back(std::move(plane));
        breaks.push_back(Try(KeptOn(problem_, graph, path)));
      }
      if (IsClosed(part)) return true;
      if (IsStopped()) return false;
      const std::optional<Prices> prices = HighestPlanes(planes, rows, most);
      const bool is_end =
          !prices || (!is_new && !is_higher) ||
          highest >= prices->ms - kNear * std::max(all_ms_, prices->ms);
      if (is_end && prices && prices->missing > kRounding &&
          most < 1e9 * (all_ms_ + 1)) {
        most *= 100;
        highest = -kInfinity;
        prices_ = prices->of_rows;
        continue;
      }
      if (is_end) {
        if (!prices) return true;
        for (size_t p = 0; p < planes.size(); ++p)
          if (prices->shares[p] > kRounding) Wish(breaks[p]);
        return true;
      }
      prices_ = prices->of_rows;
    }
  }

  // Enumerates the paths that are better than the best plan, as far as limits allow.
  // Nothing: there are rows to add.
  std::optional<Outcome> Enumerate(const DecisionGraph& graph, Part& part) {
    for (int64_t most = kFirstLabels;; most *= 10) {
      const RematLabelAnswer found = FindPaths({.graph = graph,
                                                .prices = best_prices_,
                                                .cut_off_ms = CutOff(),
                                                .labels_a_level = most,
                                                .paths = kPaths},
                                               clock_);
      answer_.labels += found.labels;
      if (found.is_stopped) {
        IsStopped();
        return Outcome::kStopped;
      }
      double least = found.dropped_ms;
      for (const DecisionPath& path : found.paths) {
        const double ms = SumsOf(graph, path).ms;
        least = std::min(least, ms);
        if (best_ && ms >= best_->recompute_ms) break;
        Wish(Try(KeptOn(problem_, graph, path)));
      }
      Raise(part, least);
      if (IsClosed(part)) return Outcome::kClosed;
      if (AddRows()) return std::nullopt;
      if (found.dropped_ms == kInfinity || most >= kMostLabels) {
        answer_.stopped_by = found.dropped_ms == kInfinity
                                 ? solver::StoppedBy::kUnproven
                                 : solver::StoppedBy::kMemory;
        return Outcome::kStopped;
      }
      if (IsStopped()) return Outcome::kStopped;
      if (MomentToSplitAt(part)) return Outcome::kSplit;
    }
  }

  const RematProblem& problem_;
  const RematQuestion& question_;
  const graph::JointSimulator simulator_;
  const solver::LimitClock clock_;
  const double all_ms_;
  RematAnswer answer_;
  std::optional<graph::JointRun> best_;
  std::vector<RematMoment> rows_;
  std::vector<RematMoment> wished_;
  std::vector<double> prices_;       // a row, of all of the budget
  std::vector<double> best_prices_;  // a row, of a byte
  bool is_restricted_ = false;
};

}  // namespace

RematAnswer SolveRemat(const RematProblem& problem,
                       const RematQuestion& question) {
  return Search(problem, question).Run();
}

LeastRematBudget FindLeastRematBudget(const RematProblem& problem,
                                      const solver::SearchLimits& limits,
                                      double tolerance) {
  const solver::LimitClock clock(limits);
  const graph::JointSimulator simulator(*problem.graph);
  LeastRematBudget least{.bytes = std::numeric_limits<int64_t>::max()};
  // Nothing fits less than the bases.
  for (const int64_t bytes : problem.backward_base)
    least.bound_bytes = std::max(least.bound_bytes, bytes);
  for (const int64_t bytes : problem.forward_base)
    least.bound_bytes = std::max(least.bound_bytes, bytes);
  int64_t budget = least.bound_bytes;
  for (;;) {
    const RematAnswer answer = SolveRemat(problem, {.budget_bytes = budget,
                                                    .limits = clock.Left(),
                                                    .is_any_enough = true});
    if (answer.least_peak_seen < least.bytes) {
      least.bytes = answer.least_peak_seen;
      least.kept = answer.least_kept;
    }
    if (answer.status == solver::SearchStatus::kInfeasible) {
      least.bound_bytes = std::max(least.bound_bytes, budget + 1);
    } else if (answer.status == solver::SearchStatus::kNoSolution) {
      break;
    }
    if (least.bytes == std::numeric_limits<int64_t>::max()) {
      least.exists = false;
      break;
    }
    const int64_t open = least.bytes - least.bound_bytes;
    if (open <= static_cast<int64_t>(tolerance *
                                     static_cast<double>(least.bytes)) ||
        clock.Stop() != solver::StoppedBy::kNothing) {
      break;
    }
    budget = least.bound_bytes + open / 2;
  }
  least.bound_bytes = std::min(least.bound_bytes, least.bytes);
  return least;
}

}  // namespace acplan::problems
