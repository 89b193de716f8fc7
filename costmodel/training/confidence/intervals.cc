// The interval of a prediction from the errors of its kind.
//
// Idea. |ln(measured / predicted)| is larger for some kinds of runs than for others, and
// its logarithm is taken as linear in few causes (ridge regression, so that a cause of few
// runs counts little). Each error divided by the typical error of its kind is a number that
// all runs share; its tenth and ninetieth percentile, times the typical error, are the ends
// of an interval (split conformal prediction). The two ends differ, because more goes wrong
// in a run that is slower than predicted than in one that is faster.
//
// Errors are of predictions whose numbers were fitted without the run: without its group, or
// without its whole source. The distance of a run is that to the runs that were not left out
// with it, so that a run which stands alone is far away, as a new one is.
#include "costmodel/training/confidence/intervals.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

namespace acplan::costmodel {
namespace {

// The penalty for each slope, as a number of runs.
constexpr double kRidge = 4;
// Smaller errors count as this one: they are no more typical than it.
constexpr double kLeastError = .01;

struct NearestRun {
  double distance = kMostDistance;
  size_t run = 0;
};

bool IsSameGeneration(const RunError& a, const RunError& b) {
  return GenerationOf(a.kind.gpu) == GenerationOf(b.kind.gpu);
}

// Returns whether a run had no part in the prediction of which `error` is.
bool IsLeftOut(const RunError& run, const RunError& error) {
  if (error.left_out == LeftOut::kGeneration) {
    return IsSameGeneration(run, error);
  }
  return run.source == error.source &&
         (error.left_out == LeftOut::kSource || run.group == error.group);
}

template <typename Condition>
NearestRun FindNearest(const std::vector<RunError>& runs, const RunKind& kind,
                       const Condition& counts) {
  constexpr double kMostSquared = kMostDistance * kMostDistance;
  NearestRun nearest;
  double least = kMostSquared;
  for (size_t i = 0; i < runs.size(); ++i) {
    double squared = SquaredStrategyDistance(runs[i].kind, kind);
    if (squared >= least || !counts(runs[i])) continue;
    squared += SquaredJobDistance(runs[i].kind, kind);
    if (squared >= least) continue;
    least = squared;
    nearest = {std::sqrt(squared), i};
  }
  return nearest;
}

ErrorCauses CausesOf(const RunKind& kind, double distance,
                     bool has_generation) {
  return {kind.has_experts ? 1.0 : 0,
          kind.width == ProductWidth::kSixteenBits ? 0 : 1.0,
          std::min(distance, kMostDistance),
          has_generation ? 0 : 1.0,
          kind.communication,
          kind.is_wide ? 1.0 : 0};
}

// An error with the causes of its size.
struct ExplainedError {
  size_t error = 0;  // its place among all
  ErrorCauses causes = {};
  double logarithm = 0;         // of measured by predicted
  std::string generation = {};  // of its GPU; empty if it was left out
};

// Returns each run once.
std::vector<RunError> EachRun(std::span<const RunError> errors) {
  std::vector<RunError> runs;
  std::set<std::string, std::less<>> ids;
  for (const RunError& error : errors) {
    if (ids.insert(error.id).second) runs.push_back(error);
  }
  return runs;
}

std::vector<ExplainedError> Explain(std::span<const RunError> errors,
                                    const std::vector<RunError>& runs) {
  std::vector<ExplainedError> explained;
  for (size_t i = 0; i < errors.size(); ++i) {
    const RunError& error = errors[i];
    const bool has_generation =
        std::ranges::any_of(runs, [&](const RunError& run) {
          return IsSameGeneration(run, error) && !IsLeftOut(run, error);
        });
    const NearestRun nearest = FindNearest(
        runs, error.kind,
        [&](const RunError& run) { return !IsLeftOut(run, error); });
    explained.push_back({i,
                         CausesOf(error.kind, nearest.distance, has_generation),
                         std::log(error.ratio),
                         error.left_out == LeftOut::kGeneration
                             ? ""
                             : std::string(GenerationOf(error.kind.gpu))});
  }
  return explained;
}

// Returns the value below which a share of the numbers, which must not be empty, lies.
double QuantileOf(std::vector<double> numbers, double share) {
  std::ranges::sort(numbers);
  const double place = share * static_cast<double>(numbers.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, numbers.size() - 1);
  const double part = place - static_cast<double>(below);
  return (1 - part) * numbers[below] + part * numbers[above];
}

using CauseMatrix = std::array<ErrorCauses, kErrorCauses>;

// Solves a positive definite system by elimination.
ErrorCauses Solve(CauseMatrix matrix, ErrorCauses right) {
  for (size_t i = 0; i < kErrorCauses; ++i) {
    for (size_t j = i + 1; j < kErrorCauses; ++j) {
      const double factor = matrix[j][i] / matrix[i][i];
      for (size_t k = i; k < kErrorCauses; ++k) {
        matrix[j][k] -= factor * matrix[i][k];
      }
      right[j] -= factor * right[i];
    }
  }
  for (size_t i = kErrorCauses; i-- > 0;) {
    for (size_t j = i + 1; j < kErrorCauses; ++j) {
      right[i] -= matrix[i][j] * right[j];
    }
    right[i] /= matrix[i][i];
  }
  return right;
}

// Returns how much larger errors on a generation of GPUs are, as a logarithm: on an unknown one
// the median of those that are known, the upper one of two.
double LargerBy(const ErrorScale& scale, std::string_view generation) {
  const auto& generations = scale.generations;
  if (generations.empty()) return 0;
  const auto entry = generations.find(generation);
  if (entry != generations.end()) return entry->second;
  std::vector<double> logarithms;
  for (const auto& [name, larger] : generations) logarithms.push_back(larger);
  const auto middle = logarithms.begin() + std::ssize(logarithms) / 2;
  std::ranges::nth_element(logarithms, middle);
  return *middle;
}

double TypicalError(const ErrorScale& scale, const ErrorCauses& causes,
                    std::string_view generation) {
  return std::exp(
      std::inner_product(causes.begin(), causes.end(), scale.slopes.begin(),
                         scale.constant + LargerBy(scale, generation)));
}

// Returns the logarithm of the size of an error.
double SizeOf(const ExplainedError& error) {
  return std::log(std::max(std::abs(error.logarithm), kLeastError));
}

// Returns how much larger the errors of each generation of GPUs are than their causes say. Few
// runs count little, and no errors count as smaller.
std::map<std::string, double, std::less<>> LargerErrors(
    const ErrorScale& scale, const std::vector<ExplainedError>& errors) {
  std::map<std::string, double, std::less<>> sums;
  std::map<std::string, double, std::less<>> counts;
  for (const ExplainedError& error : errors) {
    if (error.generation.empty()) continue;
    sums[error.generation] +=
        SizeOf(error) - std::log(TypicalError(scale, error.causes, ""));
    counts[error.generation] += 1;
  }
  for (auto& [generation, sum] : sums) {
    sum = std::max(0.0, sum / (counts[generation] + kRidge));
  }
  return sums;
}

ErrorScale FitScale(const std::vector<ExplainedError>& errors) {
  const auto count = static_cast<double>(errors.size());
  ErrorCauses means = {};
  double mean_size = 0;
  for (const ExplainedError& error : errors) {
    for (size_t i = 0; i < kErrorCauses; ++i) {
      means[i] += error.causes[i] / count;
    }
    mean_size += SizeOf(error) / count;
  }
  CauseMatrix matrix = {};
  ErrorCauses right = {};
  for (const ExplainedError& error : errors) {
    for (size_t i = 0; i < kErrorCauses; ++i) {
      const double from_mean = error.causes[i] - means[i];
      right[i] += from_mean * (SizeOf(error) - mean_size);
      for (size_t j = 0; j < kErrorCauses; ++j) {
        matrix[i][j] += from_mean * (error.causes[j] - means[j]);
      }
    }
  }
  for (size_t i = 0; i < kErrorCauses; ++i) matrix[i][i] += kRidge;
  ErrorScale scale{.constant = mean_size, .slopes = Solve(matrix, right)};
  // No interval gets narrower with the distance from what was measured, or with
  // communication. A search depends on it.
  for (const ErrorCause cause :
       {ErrorCause::kDistance, ErrorCause::kNewGeneration,
        ErrorCause::kCommunication, ErrorCause::kWide}) {
    double& slope = scale.slopes[static_cast<size_t>(cause)];
    slope = std::max(0.0, slope);
  }
  for (size_t i = 0; i < kErrorCauses; ++i) {
    scale.constant -= scale.slopes[i] * means[i];
  }
  scale.generations = LargerErrors(scale, errors);
  std::vector<double> relative;
  for (const ExplainedError& error : errors) {
    relative.push_back(error.logarithm /
                       TypicalError(scale, error.causes, error.generation));
  }
  constexpr double kTail = (1 - kIntervalShare) / 2;
  scale.low = std::min(0.0, QuantileOf(relative, kTail));
  scale.high = std::max(0.0, QuantileOf(std::move(relative), 1 - kTail));
  return scale;
}

// The coverage of a kind of runs before it is summed up.
struct CoverageSum {
  size_t inside_runs = 0;
  std::vector<double> widths = {};
};

// A kind of runs: its place in a table, and its name.
using NamedKind = std::pair<int, std::string>;

void Count(const RunError& error, const Interval& interval, CoverageSum& sum) {
  if (interval.low <= error.ratio && error.ratio <= interval.high) {
    ++sum.inside_runs;
  }
  sum.widths.push_back(interval.high / interval.low - 1);
}

// Returns the kinds that an error belongs to.
std::vector<NamedKind> KindsOfError(const RunError& error) {
  const RunKind& kind = error.kind;
  const auto left_out = static_cast<size_t>(error.left_out);
  constexpr std::array<const char*, 4> kLeftOut = {
      "nothing left out", "its group left out", "its source left out",
      "its generation of GPUs left out"};
  const bool is_wide = kind.width == ProductWidth::kSixteenBits;
  return {{0, "all"},
          {1, kLeftOut[left_out]},
          {2, kind.has_experts ? "experts" : "dense"},
          {3, is_wide ? "16 bits" : "8 and 4 bits"},
          {4, "GPUs " + std::string(GenerationOf(kind.gpu))},
          {5, kind.software},
          {6, "source " + error.source}};
}

}  // namespace

Interval ErrorScale::At(const ErrorCauses& causes,
                        std::string_view generation) const {
  const double typical = TypicalError(*this, causes, generation);
  return {std::exp(low * typical), std::exp(high * typical)};
}

IntervalModel::IntervalModel(std::vector<RunError> errors)
    : runs_(EachRun(errors)) {
  const std::vector<ExplainedError> explained = Explain(errors, runs_);
  scale_ = FitScale(explained);
  std::vector<double> widths;
  for (const ExplainedError& error : explained) {
    widths.push_back(scale_.At(error.causes, error.generation).Width());
  }
  choice_errors_ = FitChoiceErrors(errors, widths);
}

bool IntervalModel::HasGeneration(std::string_view gpu) const {
  return std::ranges::any_of(runs_, [&](const RunError& run) {
    return GenerationOf(run.kind.gpu) == GenerationOf(gpu);
  });
}

Interval IntervalModel::At(const RunKind& kind, double distance) const {
  return scale_.At(CausesOf(kind, distance, HasGeneration(kind.gpu)),
                   GenerationOf(kind.gpu));
}

Confidence IntervalModel::WithNearest(const RunKind& kind, double distance,
                                      size_t run) const {
  Confidence confidence{.interval = At(kind, distance),
                        .distance = distance,
                        .has_generation = HasGeneration(kind.gpu)};
  if (distance < kMostDistance) confidence.nearest = runs_[run].id;
  return confidence;
}

Confidence IntervalModel::At(const RunKind& kind) const {
  const NearestRun nearest =
      FindNearest(runs_, kind, [](const RunError&) { return true; });
  return WithNearest(kind, nearest.distance, nearest.run);
}

Confidence IntervalModel::WithoutGroup(const RunError& run) const {
  const NearestRun nearest =
      FindNearest(runs_, run.kind, [&](const RunError& other) {
        return other.source != run.source || other.group != run.group;
      });
  return WithNearest(run.kind, nearest.distance, nearest.run);
}

MeasuredNeighbours::MeasuredNeighbours(const IntervalModel& model,
                                       const RunKind& job) {
  for (const RunError& run : model.runs()) {
    const double squared = SquaredJobDistance(run.kind, job);
    if (squared >= kMostDistance * kMostDistance) continue;
    neighbours_.push_back({squared, run.kind});
  }
  std::ranges::sort(neighbours_, {}, &Neighbour::squared_job);
}

double MeasuredNeighbours::DistanceTo(const RunKind& strategy) const {
  double least = kMostDistance * kMostDistance;
  for (const Neighbour& neighbour : neighbours_) {
    if (neighbour.squared_job >= least) break;
    least =
        std::min(least, neighbour.squared_job +
                            SquaredStrategyDistance(neighbour.kind, strategy));
  }
  return std::sqrt(least);
}

Coverage CoverageOf(const IntervalModel& model,
                    std::span<const RunError> errors) {
  CoverageSum sum;
  for (const RunError& error : errors) {
    Count(error, model.WithoutGroup(error).interval, sum);
  }
  return {"all", sum.widths.size(), sum.inside_runs,
          sum.widths.empty() ? 0 : QuantileOf(std::move(sum.widths), .5)};
}

std::vector<Coverage> CrossValidateIntervals(std::span<const RunError> errors) {
  const std::vector<RunError> runs = EachRun(errors);
  const std::vector<ExplainedError> explained = Explain(errors, runs);
  // Errors whose intervals are fitted to the same others: those of a source, and of them
  // those without a generation.
  std::map<std::pair<std::string, std::string>, std::vector<ExplainedError>>
      parts;
  for (const ExplainedError& error : explained) {
    const RunError& run = errors[error.error];
    const bool is_new = run.left_out == LeftOut::kGeneration;
    parts[{run.source, is_new ? std::string(GenerationOf(run.kind.gpu)) : ""}]
        .push_back(error);
  }
  std::map<NamedKind, CoverageSum> sums;
  for (const auto& [part, left_out] : parts) {
    std::vector<ExplainedError> others;
    for (const ExplainedError& error : explained) {
      const RunError& run = errors[error.error];
      if (run.source == part.first ||
          (run.left_out == LeftOut::kGeneration &&
           GenerationOf(run.kind.gpu) == part.second)) {
        continue;
      }
      others.push_back(error);
    }
    if (others.empty()) continue;
    const ErrorScale scale = FitScale(others);
    for (const ExplainedError& error : left_out) {
      const RunError& run = errors[error.error];
      for (const NamedKind& kind : KindsOfError(run)) {
        Count(run, scale.At(error.causes, error.generation), sums[kind]);
      }
    }
  }
  std::vector<Coverage> coverages;
  for (auto& [kind, sum] : sums) {
    coverages.push_back({kind.second, sum.widths.size(), sum.inside_runs,
                         QuantileOf(std::move(sum.widths), .5)});
  }
  return coverages;
}

}  // namespace acplan::costmodel
