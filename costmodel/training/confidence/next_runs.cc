// The runs whose measurement decides best among strategies.
//
// Idea. The errors of predictions of one job are a field over the space of strategies: part
// of the error is noise of each strategy, part grows with the distance of two strategies, and
// a part is common to all, of which nothing is known before a run was measured. If some
// strategies are measured, the best linear prediction (kriging) estimates the others from
// them: near strategies have like errors. The regret of the choice is its mean over random
// fields, the same ones for each set of runs, so that sets are compared by the sets alone. The
// least of many means is too low, most of all among near ties, whose sets are alike: so the
// regret of a set that was chosen is its mean over other, more fields.
//
// Invariant. All quantities are relative to one strategy, so that the common part cancels;
// that is why a single measurement says nothing about the choice.
#include "costmodel/training/confidence/next_runs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace acplan::costmodel {
namespace {

constexpr size_t kMostMeasured = 3;
// The fields by which sets are compared, and those that say the regret of a chosen one.
constexpr size_t kSamples = 1000;
constexpr size_t kOtherSamples = 20000;
// No two measurements of a strategy agree better than this.
constexpr double kLeastNoise = .005;

double Squared(double x) { return x * x; }

// Two errors of predictions of one job.
struct ErrorPair {
  double squared_difference = 0;
  double squared_distance = 0;
  double weight = 0;  // so that each run counts as much
};

bool IsSameJob(const RunError& a, const RunError& b) {
  return a.source == b.source && SquaredJobDistance(a.kind, b.kind) == 0;
}

std::vector<ErrorPair> PairsOf(std::span<const RunError> errors,
                               std::span<const double> widths,
                               LeftOut left_out) {
  std::vector<ErrorPair> pairs;
  for (size_t i = 0; i < errors.size(); ++i) {
    const RunError& error = errors[i];
    if (error.left_out != left_out) continue;
    const size_t first = pairs.size();
    for (size_t j = 0; j < errors.size(); ++j) {
      const RunError& other = errors[j];
      if (other.left_out != left_out || i == j || !IsSameJob(error, other)) {
        continue;
      }
      const double difference = std::log(error.ratio / other.ratio);
      pairs.push_back({Squared(difference) / (widths[i] * widths[j]),
                       SquaredStrategyDistance(error.kind, other.kind)});
    }
    for (size_t k = first; k < pairs.size(); ++k) {
      pairs[k].weight = 1 / static_cast<double>(pairs.size() - first);
    }
  }
  return pairs;
}

using StrategyErrors = std::array<double, kMostPredicted>;
// The covariances of errors relative to the first strategy's, and their Cholesky factor.
using Matrix = std::array<StrategyErrors, kMostPredicted>;

class ErrorField {
 public:
  ErrorField(std::span<const PredictedRun> predicted, ChoiceErrors errors)
      : count_(predicted.size()) {
    errors.noise = std::max(errors.noise, kLeastNoise);
    double width = 0;
    for (const PredictedRun& run : predicted) {
      width += run.width / static_cast<double>(count_);
    }
    for (size_t i = 0; i < count_; ++i) {
      for (size_t j = 0; j < count_; ++j) {
        if (i == j) continue;
        variance_[i][j] = Squared(width) *
                          errors.Variance(predicted[i].kind, predicted[j].kind);
      }
    }
  }

  // Returns the covariance of the errors of i and j relative to that of `reference`.
  double Covariance(size_t i, size_t j, size_t reference) const {
    return (variance_[i][reference] + variance_[j][reference] -
            variance_[i][j]) /
           2;
  }

  // Returns random errors relative to the first strategy's. Each field comes with its opposite,
  // which makes means more exact.
  std::vector<StrategyErrors> Samples(size_t count, unsigned seed) const {
    const Matrix factor = CholeskyFactor();
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    std::vector<StrategyErrors> samples(count);
    for (size_t k = 0; k < count; k += 2) {
      StrategyErrors draws = {};
      for (double& draw : draws) draw = normal(random);
      for (size_t i = 1; i < count_; ++i) {
        for (size_t j = 1; j <= i; ++j) {
          samples[k][i] += factor[i][j] * draws[j];
        }
        samples[k + 1][i] = -samples[k][i];
      }
    }
    return samples;
  }

 private:
  Matrix CholeskyFactor() const {
    Matrix factor = {};
    for (size_t i = 1; i < count_; ++i) {
      for (size_t j = 1; j <= i; ++j) {
        double rest = Covariance(i, j, 0);
        for (size_t k = 1; k < j; ++k) rest -= factor[i][k] * factor[j][k];
        factor[i][j] =
            i == j ? std::sqrt(std::max(rest, 0.0)) : rest / factor[j][j];
      }
    }
    return factor;
  }

  size_t count_ = 0;
  Matrix variance_ = {};
};

// The weights with which measured errors, relative to the first measured one, predict those
// of each strategy.
struct Kriging {
  std::vector<size_t> measured = {};
  std::array<std::array<double, kMostMeasured>, kMostPredicted> weights = {};
};

// Solves the system of one or two equations.
Kriging KrigingOf(const ErrorField& field, std::vector<size_t> measured,
                  size_t count) {
  Kriging kriging{.measured = std::move(measured)};
  const std::vector<size_t>& set = kriging.measured;
  if (set.size() < 2) return kriging;
  const size_t a = set[1];
  const size_t b = set.back();
  const double aa = field.Covariance(a, a, set[0]);
  const double bb = field.Covariance(b, b, set[0]);
  const double ab = field.Covariance(a, b, set[0]);
  for (size_t i = 0; i < count; ++i) {
    const double ia = field.Covariance(i, a, set[0]);
    const double ib = field.Covariance(i, b, set[0]);
    if (set.size() == 2) {
      kriging.weights[i][1] = ia / aa;
    } else {
      const double determinant = aa * bb - ab * ab;
      kriging.weights[i][1] = (ia * bb - ib * ab) / determinant;
      kriging.weights[i][2] = (ib * aa - ia * ab) / determinant;
    }
  }
  return kriging;
}

// Returns the strategy with the shortest time, where errors are known of those measured.
template <typename Logarithms, typename Errors>
size_t Fastest(const Kriging& kriging, const Logarithms& predicted,
               const Errors& errors, size_t count) {
  const std::vector<size_t>& set = kriging.measured;
  size_t fastest = 0;
  double least = 0;
  for (size_t i = 0; i < count; ++i) {
    double time = predicted[i] + (set.empty() ? 0 : errors[set[0]]);
    for (size_t k = 1; k < set.size(); ++k) {
      time += kriging.weights[i][k] * (errors[set[k]] - errors[set[0]]);
    }
    if (std::ranges::find(set, i) != set.end()) time = predicted[i] + errors[i];
    if (i > 0 && time >= least) continue;
    fastest = i;
    least = time;
  }
  return fastest;
}

std::vector<double> LogarithmsOf(std::span<const PredictedRun> predicted) {
  std::vector<double> logarithms;
  for (const PredictedRun& run : predicted) {
    logarithms.push_back(std::log(run.seconds));
  }
  return logarithms;
}

// Returns all sets of `size` of the first `count` numbers, each in ascending order.
std::vector<std::vector<size_t>> SetsOf(size_t count, size_t size) {
  if (size == 0) return {{}};
  std::vector<std::vector<size_t>> sets;
  for (const std::vector<size_t>& fewer : SetsOf(count, size - 1)) {
    for (size_t i = fewer.empty() ? 0 : fewer.back() + 1; i < count; ++i) {
      sets.push_back(fewer);
      sets.back().push_back(i);
    }
  }
  return sets;
}

// The choices in random fields of errors.
class RunChooser {
 public:
  RunChooser(std::span<const PredictedRun> predicted,
             const ChoiceErrors& errors)
      : logarithms_(LogarithmsOf(predicted)),
        field_(predicted, errors),
        samples_(field_.Samples(kSamples, 1)),
        other_samples_(field_.Samples(kOtherSamples, 2)) {}

  // Returns the best set of so many runs.
  NextRuns Best(size_t size) const {
    std::vector<size_t> best;
    double least = 0;
    for (const std::vector<size_t>& runs : SetsOf(logarithms_.size(), size)) {
      const double regret = RegretOf(runs, samples_);
      if (!best.empty() && regret >= least) continue;
      best = runs;
      least = regret;
    }
    return {best, RegretOf(best, other_samples_)};
  }

 private:
  double RegretOf(const std::vector<size_t>& measured,
                  std::span<const StrategyErrors> samples) const {
    const size_t count = logarithms_.size();
    const Kriging kriging = KrigingOf(field_, measured, count);
    double sum = 0;
    for (const StrategyErrors& sample : samples) {
      const size_t choice = Fastest(kriging, logarithms_, sample, count);
      double least = logarithms_[0] + sample[0];
      for (size_t i = 1; i < count; ++i) {
        least = std::min(least, logarithms_[i] + sample[i]);
      }
      sum += std::expm1(logarithms_[choice] + sample[choice] - least);
    }
    return sum / static_cast<double>(samples.size());
  }

  std::vector<double> logarithms_ = {};
  ErrorField field_;
  std::vector<StrategyErrors> samples_ = {};
  std::vector<StrategyErrors> other_samples_ = {};
};

}  // namespace

double ChoiceErrors::Variance(const RunKind& a, const RunKind& b) const {
  return 2 * Squared(noise) + Squared(slope) * SquaredStrategyDistance(a, b);
}

ChoiceErrors FitChoiceErrors(std::span<const RunError> errors,
                             std::span<const double> widths) {
  constexpr int kRounds = 20;
  std::vector<ErrorPair> pairs = PairsOf(errors, widths, LeftOut::kSource);
  if (pairs.empty()) pairs = PairsOf(errors, widths, LeftOut::kGroup);
  if (pairs.empty()) pairs = PairsOf(errors, widths, LeftOut::kNothing);
  if (pairs.empty()) return {};
  // Squares scatter in proportion to their mean, so that their weight is the square of its
  // inverse, by the fit before.
  double constant = 1;
  double slope = 0;
  for (int round = 0; round < kRounds; ++round) {
    double weights = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (const ErrorPair& pair : pairs) {
      const double mean = constant + slope * pair.squared_distance;
      const double weight = pair.weight / Squared(std::max(mean, 1e-6));
      weights += weight;
      x += weight * pair.squared_distance;
      y += weight * pair.squared_difference;
      xx += weight * Squared(pair.squared_distance);
      xy += weight * pair.squared_distance * pair.squared_difference;
    }
    const double spread = xx - x * x / weights;
    slope = spread > 0 ? std::max(0.0, (xy - x * y / weights) / spread) : 0;
    constant = std::max(2 * Squared(kLeastNoise), (y - slope * x) / weights);
  }
  return {.noise = std::sqrt(constant / 2), .slope = std::sqrt(slope)};
}

std::vector<NextRuns> ChooseNextRuns(std::span<const PredictedRun> predicted,
                                     const ChoiceErrors& errors) {
  if (predicted.empty()) return {};
  const RunChooser chooser(predicted, errors);
  std::vector<NextRuns> choices = {chooser.Best(0)};
  for (size_t size = 2; size <= std::min(kMostMeasured, predicted.size());
       ++size) {
    choices.push_back(chooser.Best(size));
  }
  return choices;
}

size_t FastestAfter(std::span<const PredictedRun> predicted,
                    const ChoiceErrors& errors,
                    std::span<const size_t> measured,
                    std::span<const double> seconds) {
  const std::vector<double> logarithms = LogarithmsOf(predicted);
  std::vector<double> known_errors(predicted.size(), 0);
  for (size_t k = 0; k < measured.size(); ++k) {
    known_errors[measured[k]] = std::log(seconds[k]) - logarithms[measured[k]];
  }
  const Kriging kriging =
      KrigingOf(ErrorField(predicted, errors),
                {measured.begin(), measured.end()}, predicted.size());
  return Fastest(kriging, logarithms, known_errors, predicted.size());
}

}  // namespace acplan::costmodel
