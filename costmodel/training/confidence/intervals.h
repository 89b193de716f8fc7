#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/confidence/error_table.h"
#include "costmodel/training/confidence/next_runs.h"
#include "costmodel/training/confidence/run_kind.h"

namespace acplan::costmodel {

// The share of measured times that an interval is to contain.
constexpr double kIntervalShare = .8;
// A kind is within measured territory if a measured run is at most this far away.
constexpr double kMeasuredDistance = 1;
// No distance above this one counts.
constexpr double kMostDistance = 2.5;

// The quantities on which the width of an interval depends.
enum class ErrorCause {
  kExperts,
  kLowPrecision,
  kDistance,       // to the nearest measured run
  kNewGeneration,  // of GPUs, of which no run was measured
  kCommunication,
  kWide,
  kCount,
};
constexpr size_t kErrorCauses = static_cast<size_t>(ErrorCause::kCount);
using ErrorCauses = std::array<double, kErrorCauses>;

// Factors of a predicted time between which the measured one lies.
struct Interval {
  double low = 1;
  double high = 1;

  double Width() const { return std::log(high / low); }
};

// The confidence in the prediction of one run.
struct Confidence {
  Interval interval = {};
  double distance = kMostDistance;  // to the nearest measured run
  std::string nearest = {};         // the name of that run
  bool has_generation =
      true;  // a run on a GPU of the same generation was measured
  bool IsMeasured() const { return distance <= kMeasuredDistance; }
};

// The size of errors: the logarithm of a typical error is linear in its causes. Errors
// relative to the typical one are between two quantiles in `kIntervalShare` of all runs.
struct ErrorScale {
  double constant = 0;
  ErrorCauses slopes = {};
  double low = 0;  // the quantiles of ln(measured / predicted) / typical error
  double high = 0;
  // How much larger the errors of a generation of GPUs are, as a logarithm: 0 or more.
  std::map<std::string, double, std::less<>> generations = {};

  // Returns the interval; without a generation for errors of which it was left out.
  Interval At(const ErrorCauses& causes, std::string_view generation) const;
};

// The measured runs, and the intervals that follow from the errors of their predictions.
class IntervalModel {
 public:
  // Fits the intervals to errors, at least one.
  explicit IntervalModel(std::vector<RunError> errors);

  // Returns the confidence in a prediction for a run of this kind, of which nothing was
  // measured.
  Confidence At(const RunKind& kind) const;
  // Returns the same for a measured run, as if no run of its group had been measured.
  Confidence WithoutGroup(const RunError& run) const;
  // Returns the interval at a known distance.
  Interval At(const RunKind& kind, double distance) const;
  // Returns whether a run on a GPU of this one's generation was measured.
  bool HasGeneration(std::string_view gpu) const;
  // The measured runs, each once.
  const std::vector<RunError>& runs() const { return runs_; }
  const ErrorScale& scale() const { return scale_; }
  // How the errors of strategies of one job differ.
  const ChoiceErrors& choice_errors() const { return choice_errors_; }

 private:
  Confidence WithNearest(const RunKind& kind, double distance,
                         size_t run) const;

  std::vector<RunError> runs_ = {};
  ErrorScale scale_ = {};
  ChoiceErrors choice_errors_ = {};
};

// The distances from the strategies of one job to the nearest measured run, for searches.
class MeasuredNeighbours {
 public:
  MeasuredNeighbours(const IntervalModel& model, const RunKind& job);

  // Returns the distance; kMostDistance if it is not less.
  double DistanceTo(const RunKind& strategy) const;

 private:
  struct Neighbour {
    double squared_job = 0;
    RunKind kind = {};
  };
  std::vector<Neighbour> neighbours_ = {};  // by ascending squared_job
};

// How many measured times the intervals of a kind of runs contain.
struct Coverage {
  std::string name = {};
  size_t runs = 0;
  size_t inside_runs = 0;
  double width = 0;  // the median of high / low - 1
  double Share() const {
    return static_cast<double>(inside_runs) / static_cast<double>(runs);
  }
};

// Returns the coverage of these errors by the intervals of a model, as if no run of their
// groups had been measured.
Coverage CoverageOf(const IntervalModel& model,
                    std::span<const RunError> errors);

// Returns the coverage of all errors, then by kind, then by source, if the intervals of a
// source's runs are fitted to the errors of all other sources. For errors without a generation
// of GPUs, the other errors without that generation are left out, too.
std::vector<Coverage> CrossValidateIntervals(std::span<const RunError> errors);

}  // namespace acplan::costmodel
