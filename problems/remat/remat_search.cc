#include "problems/remat/remat_search.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "graph/base/input_error.h"
#include "problems/remat/decision_graph.h"
#include "problems/remat/price_search.h"
#include "problems/remat/remat_labels.h"
#include "problems/remat/remat_parts.h"
#include "problems/remat/remat_prices.h"
#include "solver/infinity.h"

// Idea. The search need not look at moments that no good plan fills up. So it
// begins with the moment at which most is live if all is kept, as the only row,
// and adds the moments at which the plans that it finds break the budget. With
// the rows of one round:
//
// 1. With a price of a byte at each row in place of the budget, the best plan is a
//    shortest path of the decision graph, and its cost, less that of the budget, is a
//    bound. Cutting planes find the best prices, as in problems/trace/rerun_bound/rerun_bound.cc.
// 2. Labels enumerate the paths within the rows that cost less than the best plan so far;
//    with these prices few beginnings of paths are left.
//
// Every path is simulated, and the cheapest that keeps the budget is the best
// plan. A row at which an operator runs again has more room than needed by
// paths on which the operator does not, so that prices see little of it. So if
// there are too many labels, the plans are split into those in which the
// operator runs again, whose row has no such room, and the others, which have
// no such row. Rows are moments of the step, and paths take at a row at most
// the bytes that the simulation finds there. So if no path is cheaper than the
// best plan, no plan is.

namespace acplan::problems {

using solver::kInfinity;

namespace {

constexpr double kRounding = 1e-9;  // of sums, relative
constexpr int64_t kFirstLabels = 1000;
constexpr int64_t kMostLabels = 1000000;
constexpr int64_t kPaths = 40;

// The best plan so far, of all that were simulated.
class Plans {
 public:
  Plans(const RematProblem& problem, const RematQuestion& question)
      : problem_(problem),
        question_(question),
        simulator_(*problem.graph),
        unit_ms_(std::min(1.0, problem.AllMs())) {}

  // Simulates a plan. Returns the moment at which it breaks the budget most.
  std::optional<RematMoment> Try(const std::vector<char>& is_kept) {
    graph::JointRun run;
    try {
      run = simulator_.Run(is_kept);
    } catch (const InputError&) {
      return std::nullopt;  // a relaxed path may be no plan
    }
    if (run.kept_bytes > question_.kept_bytes) return problem_.Between();
    if (run.peak_bytes < least_peak_) {
      least_peak_ = run.peak_bytes;
      least_kept_ = run.is_kept;
    }
    const std::optional<int32_t> broken = WorstStep(run);
    // If nothing runs, the held bytes alone are too much for every plan.
    if (broken) {
      if (run.steps.empty()) return std::nullopt;
      return MomentOf(problem_, run, *broken);
    }
    const auto rank = [](const graph::JointRun& r) {
      return std::pair(r.recompute_ms, r.peak_bytes);
    };
    if (!best_ || rank(run) < rank(*best_)) best_ = std::move(run);
    return std::nullopt;
  }

  // Returns the step that breaks the budget most, by the bytes that count.
  std::optional<int32_t> WorstStep(const graph::JointRun& run) const {
    if (problem_.forward_slack.empty() || run.steps.empty()) {
      if (run.peak_bytes <= question_.budget_bytes) return std::nullopt;
      return run.peak_step;
    }
    std::optional<int32_t> worst;
    int64_t most = question_.budget_bytes;
    for (int32_t s = 0; s < std::ssize(run.steps); ++s) {
      if (run.live_bytes[s] <= most) continue;
      const int64_t counted_bytes =
          run.live_bytes[s] - problem_.SlackOf(MomentOf(problem_, run, s));
      if (counted_bytes <= most) continue;
      most = counted_bytes;
      worst = s;
    }
    return worst;
  }

  std::optional<RematMoment> TryAllKept() { return Try(simulator_.AllKept()); }

  double BestMs() const { return best_ ? best_->recompute_ms : kInfinity; }
  bool IsEnough() const { return best_ && question_.is_any_enough; }
  // Returns the cost below which a plan is wanted.
  double CutOff() const {
    if (!best_) return kInfinity;
    const double best = best_->recompute_ms;
    return best - std::max(question_.limits.gap * best, Rounding());
  }
  // Returns the rounding of costs. Steps of less than a millisecond have less
  // to round.
  double Rounding() const { return kRounding * std::max(unit_ms_, BestMs()); }

  // Puts the best plan into an answer whose bound is known.
  void Finish(RematAnswer& answer) {
    answer.least_peak_seen = least_peak_;
    answer.least_kept = least_kept_;
    if (!best_) {
      answer.status = answer.bound_ms == kInfinity
                          ? solver::SearchStatus::kInfeasible
                          : solver::SearchStatus::kNoSolution;
      return;
    }
    const bool is_near = answer.bound_ms >= CutOff();
    const bool is_proven = answer.bound_ms >= BestMs() - Rounding();
    answer.bound_ms = is_proven ? BestMs() : answer.bound_ms;
    answer.run = *std::move(best_);
    answer.status = is_proven ? solver::SearchStatus::kOptimal
                              : solver::SearchStatus::kFeasible;
    if (is_proven) {
      answer.stopped_by = solver::StoppedBy::kNothing;
    } else if (is_near) {
      answer.stopped_by = solver::StoppedBy::kGap;
    }
  }

 private:
  const RematProblem& problem_;
  const RematQuestion& question_;
  const graph::JointSimulator simulator_;
  const double unit_ms_;
  std::optional<graph::JointRun> best_;
  int64_t least_peak_ = std::numeric_limits<int64_t>::max();
  std::vector<char> least_kept_;
};

class Search {
 public:
  Search(const RematProblem& problem, const RematQuestion& question)
      : problem_(problem),
        question_(question),
        clock_(question.limits),
        all_ms_(problem.AllMs()),
        plans_(problem, question) {}

  RematAnswer Run() {
    Find();
    answer_.seconds = clock_.Seconds();
    answer_.moments = std::ssize(rows_.rows);
    plans_.Finish(answer_);
    return std::move(answer_);
  }

 private:
  enum class Outcome : char { kClosed, kSplit, kStopped };

  // Searches until the best plan is proven, or a limit strikes.
  void Find() {
    if (!question_.start.empty()) plans_.Try(question_.start);
    rows_.Wish(plans_.TryAllKept());
    if (LeastBase(problem_) > question_.budget_bytes) {
      answer_.bound_ms = kInfinity;
      return;
    }
    rows_.Add();
    std::vector<RematPart> open = {RematPart()};
    double closed_ms = kInfinity;  // no plan of a closed part costs less
    while (!open.empty()) {
      const auto least =
          std::ranges::min_element(open, {}, &RematPart::bound_ms);
      RematPart part = std::move(*least);
      open.erase(least);
      answer_.bound_ms = std::min(part.bound_ms, closed_ms);
      if (IsClosed(part)) return;
      const Outcome outcome = Solve(part);
      if (outcome == Outcome::kStopped) {
        open.push_back(std::move(part));
        answer_.bound_ms =
            std::min(std::ranges::min(open, {}, &RematPart::bound_ms).bound_ms,
                     closed_ms);
        return;
      }
      if (outcome == Outcome::kClosed)
        closed_ms = std::min(closed_ms, part.bound_ms);
      if (outcome == Outcome::kSplit) {
        const RematMoment moment = *rows_.OpenIn(part);
        for (const bool is_met : {true, false}) {
          open.push_back(part);
          open.back().conditions.push_back(
              {.moment = moment, .is_met = is_met});
        }
      }
      if (plans_.IsEnough()) return;
    }
    answer_.bound_ms = closed_ms;
  }

  // Looks for better plans in a part, and raises its bound.
  Outcome Solve(RematPart& part) {
    for (;;) {
      const DecisionGraph graph =
          BuildDecisionGraph(problem_, rows_.RowsOf(part),
                             {.peak_bytes = question_.budget_bytes,
                              .kept_bytes = question_.kept_bytes},
                             {.conditions = part.conditions});
      if (graph.is_restricted) is_restricted_ = true;
      if (!HasPath(graph)) {
        if (!is_restricted_) {
          part.bound_ms = kInfinity;
          return Outcome::kClosed;
        }
        answer_.stopped_by = solver::StoppedBy::kUnproven;
        return Outcome::kStopped;
      }
      const PriceAnswer priced = Price(graph, part);
      if (priced.is_stopped) return Outcome::kStopped;
      if (IsClosed(part)) return Outcome::kClosed;
      if (rows_.Add()) continue;
      const std::optional<Outcome> outcome =
          Enumerate(graph, priced.prices, part);
      if (outcome) return *outcome;
    }
  }

  static bool HasPath(const DecisionGraph& graph) {
    const std::vector<double> none(graph.rows.size(), 0);
    return CheapestRests(graph, none).front().front() < kInfinity;
  }

  bool IsClosed(const RematPart& part) const {
    return plans_.IsEnough() || part.bound_ms >= plans_.CutOff();
  }

  bool IsStopped() {
    if (question_.limits.on_progress) {
      question_.limits.on_progress({.best = plans_.BestMs(),
                                    .bound = answer_.bound_ms,
                                    .nodes = answer_.labels,
                                    .seconds = clock_.Seconds()});
    }
    const solver::StoppedBy reason = clock_.Stop();
    if (reason == solver::StoppedBy::kNothing) return false;
    answer_.stopped_by = reason;
    return true;
  }

  void Raise(RematPart& part, double ms) const {
    if (is_restricted_) return;
    if (ms > all_ms_ * (1 + kRounding) + kRounding) ms = kInfinity;
    part.bound_ms = std::max(part.bound_ms, ms);
  }

  // Returns a limit on the bytes of all decisions, for every budget.
  int64_t Scale() const {
    int64_t bytes = 0;
    for (const RematValue& value : problem_.values) bytes += value.bytes;
    return std::min(bytes, question_.budget_bytes);
  }

  // Finds the best prices of the rows.
  PriceAnswer Price(const DecisionGraph& graph, RematPart& part) {
    std::vector<std::optional<RematMoment>> breaks;
    PriceAnswer priced = FindPrices(
        {.graph = graph,
         .scale_bytes = Scale(),
         .all_ms = all_ms_,
         .on_path =
             [&](const DecisionPath& path) {
               breaks.push_back(plans_.Try(KeptOn(problem_, graph, path)));
             },
         .on_bound =
             [&](double ms) {
               Raise(part, ms);
               return IsClosed(part);
             },
         .is_stopped = [this] { return IsStopped(); }});
    for (const int64_t path : priced.mixture) rows_.Wish(breaks[path]);
    answer_.cuts += priced.cuts;
    return priced;
  }

  // Enumerates the paths that are better than the best plan, as far as limits
  // allow. Returns nothing if there are rows to add.
  std::optional<Outcome> Enumerate(const DecisionGraph& graph,
                                   const std::vector<double>& prices,
                                   RematPart& part) {
    for (int64_t most = kFirstLabels;; most *= 10) {
      const double cut_off = plans_.CutOff();
      const RematLabelAnswer label_answer = FindPaths({.graph = graph,
                                                       .prices = prices,
                                                       .cut_off_ms = cut_off,
                                                       .labels_a_level = most,
                                                       .paths = kPaths},
                                                      clock_);
      answer_.labels += label_answer.labels;
      if (label_answer.is_stopped) {
        IsStopped();
        return Outcome::kStopped;
      }
      // The search left out paths that cost at least the cut-off.
      Raise(part, std::min(TryAll(graph, label_answer), cut_off));
      if (IsClosed(part)) return Outcome::kClosed;
      if (rows_.Add()) return std::nullopt;
      const bool is_all = label_answer.dropped_ms == kInfinity;
      if (is_all || most >= kMostLabels) {
        answer_.stopped_by =
            is_all ? solver::StoppedBy::kUnproven : solver::StoppedBy::kMemory;
        return Outcome::kStopped;
      }
      if (IsStopped()) return Outcome::kStopped;
      if (rows_.OpenIn(part)) return Outcome::kSplit;
    }
  }

  // Simulates the paths. Returns a bound on all paths.
  double TryAll(const DecisionGraph& graph,
                const RematLabelAnswer& label_answer) {
    double least = label_answer.dropped_ms;
    for (const DecisionPath& path : label_answer.paths) {
      const double ms = SumsOf(graph, path).ms;
      least = std::min(least, ms);
      if (ms >= plans_.BestMs()) break;
      rows_.Wish(plans_.Try(KeptOn(problem_, graph, path)));
    }
    return least;
  }

  const RematProblem& problem_;
  const RematQuestion& question_;
  const solver::LimitClock clock_;
  const double all_ms_;
  Plans plans_;
  RematRows rows_;
  bool is_restricted_ = false;
  RematAnswer answer_;
};

}  // namespace

int64_t LeastBase(const RematProblem& problem) {
  using enum RematMoment::Kind;
  int64_t least = problem.graph->held_bytes;
  const auto raise = [&](const RematMoment& moment) {
    least = std::max(least, problem.BaseOf(moment) - problem.SlackOf(moment));
  };
  for (int32_t j = 0; j < std::ssize(problem.backward_base); ++j)
    raise({.kind = kBackward, .backward = j});
  for (int32_t o = 0; o < std::ssize(problem.forward_base); ++o)
    raise({.kind = kForward, .op = o});
  return least;
}

RematAnswer SolveRemat(const RematProblem& problem,
                       const RematQuestion& question) {
  return Search(problem, question).Run();
}

LeastRematBudget FindLeastRematBudget(const RematProblem& problem,
                                      const solver::SearchLimits& limits,
                                      double tolerance, int64_t kept_bytes) {
  const solver::LimitClock clock(limits);
  const graph::JointSimulator simulator(*problem.graph);
  LeastRematBudget least{.bytes = std::numeric_limits<int64_t>::max(),
                         .bound_bytes = LeastBase(problem)};
  int64_t budget = least.bound_bytes;
  for (;;) {
    const RematAnswer answer = SolveRemat(problem, {.budget_bytes = budget,
                                                    .kept_bytes = kept_bytes,
                                                    .limits = clock.Remaining(),
                                                    .is_any_enough = true});
    if (answer.least_peak_seen < least.bytes) {
      least.bytes = answer.least_peak_seen;
      least.is_kept = answer.least_kept;
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
