#include "problems/trace/rerun_bound/rerun_bound.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "graph/base/flag.h"
#include "problems/trace/rerun_bound/rerun_cut.h"
#include "problems/trace/rerun_bound/rerun_problem.h"
#include "solver/price_planes.h"
#include "solver/stop.h"

// Solves the relaxation of the rerun problem by prices for bytes.
//
// Idea. With a price a byte at each moment in place of the budget, the problem is a
// minimum cut (rerun_cut.h), whose capacity less what the budget would cost at these
// prices is a bound: no schedule within the budget pays less. The best prices give the
// optimum of the relaxation, since the cut problem's is integral. They are found by
// cutting planes: each cut is a choice of what runs again, and with it a plane above
// the bound as a function of prices; a small program over all choices so far
// (solver/price_planes.h) finds the prices at which the planes are highest, the next cut
// is made there, and the end is where bound and planes meet.
//
// Any prices give a bound, and moments that are left out make it no higher. So it begins
// with the one moment at which most is live, and adds others where the mixture of
// choices that the program ends with is over the budget.

namespace acplan::problems {
namespace {

using graph::OperatorId;
using Flags = graph::IndexedVector<OperatorId, graph::Flag>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNear = 1e-5;    // bound and planes, relative
constexpr double kOver = 1e-4;    // a mixture and the budget, relative
constexpr double kSafety = 1e-9;  // for the rounding of doubles, relative

class Pricing {
 public:
  Pricing(const RerunProblem& problem, int64_t budget_bytes,
          const solver::SearchLimits& limits)
      : problem_(problem), budget_(budget_bytes), clock_(limits) {}

  RerunBound Run() {
    try {
      const solver::StopScope scope(clock_.SecondsLeft(),
                                    clock_.limits().interrupted);
      Raise();
    } catch (const solver::Stopped&) {
      result_.is_loose = true;
    }
    result_.seconds = clock_.Seconds();
    return std::move(result_);
  }

 private:
  // Raises the bound as far as the limits allow.
  void Raise() {
    const auto most = std::ranges::max_element(problem_.held_bytes);
    if (most != problem_.held_bytes.end() && *most > budget_) {
      result_.ms = kInfinity;
      return;
    }
    FindCrowded();
    if (crowded_.empty()) return;
    choices_ = {NothingAgain(), AllAgain()};
    for (std::optional<OperatorId> moment = crowded_.front(); moment;
         moment = MostOver()) {
      AddMoment(*moment);
      if (!FindPrices()) {
        result_.is_loose = true;
        break;
      }
    }
  }

  double Excess(int64_t bytes) const {
    return static_cast<double>(bytes - budget_) /
           static_cast<double>(std::max<int64_t>(budget_, 1));
  }

  // Only where the budget is not met as it is, anything has to be absent.
  void FindCrowded() {
    std::vector<std::pair<int64_t, OperatorId>> crowded;
    const auto bytes = problem_.BytesWithoutReruns();
    for (const OperatorId k : bytes.ids()) {
      if (bytes[k] > budget_) crowded.emplace_back(-bytes[k], k);
    }
    std::ranges::sort(crowded);
    for (const auto& [less, k] : crowded) crowded_.push_back(k);
  }

  Reruns NothingAgain() const {
    return {.runs_again = Flags(problem_.runtime_ms.size(), false)};
  }

  Reruns AllAgain() const {
    Reruns all{.runs_again = Flags(problem_.runtime_ms.size(), true)};
    for (const double ms : problem_.runtime_ms) all.ms += ms;
    return all;
  }

  void AddMoment(OperatorId moment) {
    result_.moments.push_back(moment);
    for (Reruns& choice : choices_) {
      choice.bytes_at.push_back(
          BytesWithReruns(problem_, moment, choice.runs_again));
    }
  }

  // The cheapest mixture that meets the budget at all moments, and the prices at
  // which no choice is cheaper than it.
  std::optional<solver::HighestPoint> BestMixture() const {
    std::vector<solver::PricePlane> planes;
    for (const Reruns& choice : choices_) {
      solver::PricePlane& plane = planes.emplace_back();
      plane.cost = choice.ms;
      for (const int64_t bytes : choice.bytes_at) {
        plane.excess.push_back(Excess(bytes));
      }
    }
    return solver::FindHighestPoint(planes, result_.moments.size());
  }

  // Returns whether the bound is as high as these moments make it.
  bool FindPrices() {
    const RerunCut cut(problem_, result_.moments);
    double best = 0;
    for (;;) {
      const std::optional<solver::HighestPoint> mixture = BestMixture();
      if (!mixture) return false;
      mixture_ = *mixture;
      const double height = mixture->height;
      if (best >= height * (1 - kNear) || height <= 0) return true;
      const bool is_over = clock_.Stop() != solver::StoppedBy::kNothing ||
                           result_.cuts >= clock_.limits().node_limit;
      if (is_over) return false;
      const double before = best;
      PricedReruns answer = Evaluate(cut, mixture->prices, best);
      const bool is_new =
          std::ranges::none_of(choices_, [&](const Reruns& choice) {
            return choice.ms == answer.reruns.ms &&
                   choice.bytes_at == answer.reruns.bytes_at;
          });
      // No more digits.
      if (!is_new && best <= before) return true;
      if (is_new) choices_.push_back(std::move(answer.reruns));
    }
  }

  // Raises `best` to the bound that prices give.
  PricedReruns Evaluate(const RerunCut& cut, const std::vector<double>& prices,
                        double& best) {
    std::vector<double> of_bytes;
    double held_ms = 0;
    for (size_t m = 0; m < prices.size(); ++m) {
      of_bytes.push_back(prices[m] /
                         static_cast<double>(std::max<int64_t>(budget_, 1)));
      held_ms += prices[m] * Excess(problem_.held_bytes[result_.moments[m]]);
    }
    PricedReruns answer = cut.Solve(of_bytes);
    ++result_.cuts;
    const double bound = answer.least * (1 - kSafety) + held_ms * (1 + kSafety);
    best = std::max(best, bound);
    result_.ms = std::max(result_.ms, best);
    return answer;
  }

  // The operator at which the mixture is most over the budget, if any.
  std::optional<OperatorId> MostOver() const {
    std::vector<size_t> mixed;
    for (size_t c = 0; c < mixture_.shares.size(); ++c) {
      if (mixture_.shares[c] > kSafety) mixed.push_back(c);
    }
    std::optional<OperatorId> most;
    double most_over = kOver;
    for (const OperatorId k : crowded_) {
      solver::StopIfDue();
      if (std::ranges::find(result_.moments, k) != result_.moments.end()) {
        continue;
      }
      double over = 0;
      for (const size_t c : mixed) {
        over += mixture_.shares[c] *
                Excess(BytesWithReruns(problem_, k, choices_[c].runs_again));
      }
      if (over <= most_over) continue;
      most_over = over;
      most = k;
    }
    return most;
  }

  const RerunProblem& problem_;
  const int64_t budget_;
  const solver::LimitClock clock_;
  std::vector<OperatorId> crowded_;  // the most bytes first
  std::vector<Reruns> choices_;
  solver::HighestPoint mixture_;  // of the first of them
  RerunBound result_;
};

}  // namespace

RerunBound BoundReruns(
    const graph::Trace& trace,
    const graph::IndexedVector<OperatorId, int64_t>& bytes_of_rank,
    int64_t budget_bytes, const solver::SearchLimits& limits) {
  const RerunProblem problem = BuildRerunProblem(trace, bytes_of_rank);
  return Pricing(problem, budget_bytes, limits).Run();
}

}  // namespace acplan::problems
