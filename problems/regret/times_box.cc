#include "problems/regret/times_box.h"

#include <algorithm>
#include <limits>

// Let k_i(y) = b + n_i(x) - ratio (b + n_i(y)). The ratio of x to y is above `ratio` for
// some run-times of the box if and only if
//
//   G(y) = max over u of sum_i k_i(y) u_i = sum_i h_i(n_i(y))  > 0,
//   h_i(n) = k f_i t_i if k = b + n_i(x) - ratio (b + n) > 0, else k t_i / f_i:
//
// each run-time is at an end of its own. h_i falls with n and is convex. On {0, 1} it is
// the line through its two values; on {0, ..., M} no point of it is above the line through
// h_i(0) and h_i(M). So sum_i h_i(0) - (h_i(0) - h_i(M_i)) / M_i n_i(y) is G(y) where
// M_i = 1, and at least G(y) elsewhere: the game. To find its largest value over y is to
// plan for the run-times (h_i(0) - h_i(M_i)) / M_i.
//
// Dinkelbach. The ratio of x to a given y is a quotient of two linear functions of u. From
// any ratio of the box, the u that makes G(y) largest has no smaller ratio; after as many
// steps as there are corners at most the ratio is the largest, since it rises with each.
//
// From a game to a ratio. G falls with `ratio` at least as fast as
// d = (sum_i b t_i + least_ms) / f, the least that the denominator can be. If G <= g at
// `ratio`, then G <= 0 at ratio + max(0, g) / d.

namespace acplan::problems {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// Steps of Dinkelbach's method, which needs a few.
constexpr int kMostSteps = 100;

// Returns what an operator contributes to a game: h in the comment above.
double Contribution(double coefficient, double estimate, double factor) {
  return coefficient > 0 ? coefficient * estimate * factor
                         : coefficient * estimate / factor;
}

double LargestFactor(const BoxedPlan& plan) {
  double largest = 1;
  for (const double factor : plan.factors) largest = std::max(largest, factor);
  return largest;
}

double SumOf(const Times& times) {
  double sum = 0;
  for (const double ms : times) sum += ms;
  return sum;
}

}  // namespace

Times EstimatesOf(const graph::Trace& trace) {
  Times times;
  for (const graph::TraceOperator& op : trace.operators) {
    times.push_back(op.runtime_ms);
  }
  return times;
}

Reruns RerunsOf(const graph::Trace& trace,
                const graph::Simulation& simulation) {
  Reruns reruns(trace.operators.size(), 0);
  for (const graph::Simulation::Step& step : simulation.steps) {
    if (step.redone != graph::kNone) ++reruns[step.op];
  }
  return reruns;
}

Reruns MostReruns(const graph::Trace& trace) {
  Reruns most(trace.operators.size(), 1);
  for (const graph::TraceOperator& op : trace.operators) {
    for (const graph::OperatorId cast : op.recasts) ++most[cast];
  }
  return most;
}

double CostOf(const Times& times, const Reruns& reruns) {
  double ms = 0;
  for (const graph::OperatorId op : times.ids()) ms += times[op] * reruns[op];
  return ms;
}

double LargestRatio(const BoxedPlan& plan, Measure measure,
                    const Reruns& other) {
  const double base = BaseOf(measure);
  double ratio = 0;
  for (int step = 0; step < kMostSteps; ++step) {
    double cost = 0;
    double other_cost = 0;
    for (const graph::OperatorId op : plan.estimates.ids()) {
      const double own_runs = base + plan.reruns[op];
      const double other_runs = base + other[op];
      const double ms = own_runs > ratio * other_runs ? plan.factors[op]
                                                      : 1 / plan.factors[op];
      cost += own_runs * ms * plan.estimates[op];
      other_cost += other_runs * ms * plan.estimates[op];
    }
    if (other_cost <= 0) return cost > 0 ? kUnbounded : 1;
    const double next = cost / other_cost;
    if (next <= ratio * (1 + 1e-15)) break;
    ratio = next;
  }
  return ratio;
}

LinearGame GameAgainst(const BoxedPlan& plan, Measure measure, double ratio) {
  const double base = BaseOf(measure);
  LinearGame game{.measure = measure,
                  .ratio = ratio,
                  .weights = Times(plan.estimates.size(), 0)};
  for (const graph::OperatorId op : plan.estimates.ids()) {
    const double most = std::max(plan.most[op], plan.reruns[op]);
    const auto at = [&](double other_reruns) {
      return Contribution(
          base + plan.reruns[op] - ratio * (base + other_reruns),
          plan.estimates[op], plan.factors[op]);
    };
    game.constant += at(0);
    game.weights[op] = std::max(0.0, (at(0) - at(most)) / most);
  }
  return game;
}

double ProvenRatio(const BoxedPlan& plan, const LinearGame& game, double bound,
                   double least_ms) {
  const double excess = game.constant - bound;
  if (excess <= 0) return game.ratio;
  const double least =
      (BaseOf(game.measure) * SumOf(plan.estimates) + least_ms) /
      LargestFactor(plan);
  return least > 0 ? game.ratio + excess / least : kUnbounded;
}

double RatioWithoutSearch(const BoxedPlan& plan, Measure measure,
                          double least_ms) {
  // The other plan's recomputation is at least least_ms / f, wherever it comes from.
  const double base = BaseOf(measure);
  const double most_factor = LargestFactor(plan);
  double ratio = 0;
  for (int step = 0; step < kMostSteps; ++step) {
    double cost = 0;
    double least = least_ms / most_factor;
    for (const graph::OperatorId op : plan.estimates.ids()) {
      const double runs = base + plan.reruns[op];
      const double ms =
          runs > ratio * base ? plan.factors[op] : 1 / plan.factors[op];
      cost += runs * ms * plan.estimates[op];
      least += base * ms * plan.estimates[op];
    }
    if (least <= 0) return cost > 0 ? kUnbounded : 1;
    const double next = cost / least;
    if (next <= ratio * (1 + 1e-15)) break;
    ratio = next;
  }
  return std::max(1.0, ratio);
}

}  // namespace acplan::problems
