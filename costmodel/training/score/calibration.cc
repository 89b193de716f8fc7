#include "costmodel/training/score/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

constexpr size_t kParts = 3;
using Parts = std::array<double, kParts>;

// The weight of the factor 1 beside runs, and of one factor beside factors of parts.
constexpr double kPriorRuns = 1;
constexpr double kPartRidge = .1;
constexpr size_t kLeastRunsForParts = 3;
// A more complicated calibration must reduce the error to this share.
constexpr double kReduction = .9;

TrainingJob Calibrated(TrainingJob job, const Calibration& calibration) {
  job.cluster.gpu = WithCalibration(std::move(job.cluster.gpu), calibration);
  job.cluster.stack =
      WithCalibration(std::move(job.cluster.stack), calibration);
  return job;
}

StepTime TimeOf(const TrainingRun& run, const Calibration& calibration) {
  return PredictStepTime(Calibrated(*run.job, calibration));
}

double LogarithmOf(const TrainingRun& run, const StepTime& time) {
  return std::log(run.seconds / time.Total());
}

// Returns the shares of the three parts. A bubble is a wait for all of them.
Parts SharesOf(const StepTime& time) {
  const double busy = time.Total() - time.bubble;
  const double sent_seconds = time.communication + time.data;
  const double host_seconds = time.host + time.other;
  return {(busy - sent_seconds - host_seconds) / busy, sent_seconds / busy,
          host_seconds / busy};
}

Calibration OfLogarithms(const Parts& logarithms) {
  return {.computation = std::exp(logarithms[0]),
          .communication = std::exp(logarithms[1]),
          .host = std::exp(logarithms[2])};
}

double FactorLogarithm(std::span<const TrainingRun> runs) {
  double sum = 0;
  for (const TrainingRun& run : runs) {
    sum += LogarithmOf(run, TimeOf(run, {}));
  }
  return sum / (static_cast<double>(runs.size()) + kPriorRuns);
}

Calibration OneFactor(std::span<const TrainingRun> runs) {
  const double logarithm = FactorLogarithm(runs);
  return OfLogarithms({logarithm, logarithm, logarithm});
}

// Returns factors of parts by ridge regression of the logarithms that remain after the one
// factor, by coordinate descent (the problem is strictly convex).
Calibration FactorsOfParts(std::span<const TrainingRun> runs) {
  constexpr int kRounds = 200;
  const double factor = FactorLogarithm(runs);
  std::vector<Parts> shares;
  std::vector<double> rests;
  for (const TrainingRun& run : runs) {
    const StepTime time = TimeOf(run, {});
    shares.push_back(SharesOf(time));
    rests.push_back(LogarithmOf(run, time) - factor);
  }
  Parts slopes = {};
  for (int round = 0; round < kRounds; ++round) {
    for (size_t part = 0; part < kParts; ++part) {
      double top = 0;
      double bottom = kPartRidge;
      for (size_t i = 0; i < rests.size(); ++i) {
        double rest = rests[i];
        for (size_t other = 0; other < kParts; ++other) {
          if (other != part) rest -= shares[i][other] * slopes[other];
        }
        top += shares[i][part] * rest;
        bottom += shares[i][part] * shares[i][part];
      }
      slopes[part] = top / bottom;
    }
  }
  for (double& slope : slopes) slope += factor;
  return OfLogarithms(slopes);
}

double ErrorOf(const TrainingRun& run, const Calibration& calibration) {
  return std::abs(TimeOf(run, calibration).Total() / run.seconds - 1);
}

// Returns the mean error of each run with the calibration from the others.
template <typename Fit>
double LeftOutError(std::span<const TrainingRun> runs, const Fit& fit) {
  double sum = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<TrainingRun> others(runs.begin(), runs.end());
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    sum += ErrorOf(runs[i], fit(others));
  }
  return sum / static_cast<double>(runs.size());
}

// The mean errors of a source's predictions.
struct SourceSums {
  size_t count = 0;
  double before = 0;
  double after = 0;
};

}  // namespace

Accelerator WithCalibration(Accelerator gpu, const Calibration& calibration) {
  for (double* share :
       {&gpu.product_share, &gpu.fp8_product_share, &gpu.flash_share,
        &gpu.flash_new_share, &gpu.memory_share}) {
    *share /= calibration.computation;
  }
  gpu.nvlink_share /= calibration.communication;
  gpu.host_rate /= calibration.communication;
  return gpu;
}

SoftwareStack WithCalibration(SoftwareStack stack,
                              const Calibration& calibration) {
  stack.network_share /= calibration.communication;
  stack.network_latency *= calibration.communication;
  stack.host_seconds *= calibration.host;
  stack.iteration_seconds *= calibration.host;
  return stack;
}

TrainingSystems WithCalibration(TrainingSystems systems,
                                const Calibration& calibration) {
  for (Accelerator& gpu : systems.accelerators) {
    gpu = WithCalibration(std::move(gpu), calibration);
  }
  for (SoftwareStack& stack : systems.stacks) {
    stack = WithCalibration(std::move(stack), calibration);
  }
  return systems;
}

Calibration Calibrate(std::span<const TrainingRun> runs) {
  double before = 0;
  for (const TrainingRun& run : runs) {
    before += ErrorOf(run, {}) / static_cast<double>(runs.size());
  }
  Calibration calibration = {};
  double error = before;
  if (runs.size() == 1) {
    calibration = OneFactor(runs);
    error = ErrorOf(runs[0], calibration);
  } else if (const double left_out = LeftOutError(runs, OneFactor);
             left_out < kReduction * error) {
    calibration = OneFactor(runs);
    error = left_out;
  }
  if (runs.size() >= kLeastRunsForParts) {
    const double left_out = LeftOutError(runs, FactorsOfParts);
    if (left_out < kReduction * error) {
      calibration = FactorsOfParts(runs);
      error = left_out;
    }
  }
  calibration.error_before = before;
  calibration.error_after = error;
  calibration.runs = runs.size();
  return calibration;
}

Calibration CalibrateToTable(const graph::CsvTable& table,
                             const TrainingSystems& systems) {
  std::vector<TrainingRun> runs = ReadRuns(table, systems);
  std::string reason = "no run";
  std::erase_if(runs, [&](const TrainingRun& run) {
    if (!run.job) reason = run.reason;
    return !run.job;
  });
  if (runs.empty()) {
    throw InputError(
        fmt::format("{}: expected a run that can be predicted, found {}",
                    table.file, reason));
  }
  return Calibrate(runs);
}

std::vector<CalibrationScore> ScoreCalibrations(
    const std::vector<TrainingRun>& runs) {
  constexpr size_t kMostRuns = 5;
  constexpr size_t kMostStarts = 8;
  std::map<std::string, std::vector<TrainingRun>> stacks;
  for (const TrainingRun& run : runs) {
    if (run.job) stacks[run.stack].push_back(run);
  }
  std::vector<CalibrationScore> scores;
  for (size_t count = 1; count <= kMostRuns; ++count) {
    std::map<std::string, SourceSums> sources;
    CalibrationScore score{.runs = count};
    for (const auto& [name, stack] : stacks) {
      if (stack.size() <= count) continue;
      SourceSums& source = sources[stack[0].source];
      std::vector<TrainingRun> turned = stack;
      for (size_t i = 0; i < std::min(stack.size(), kMostStarts); ++i) {
        const std::span<const TrainingRun> own(turned.data(), count);
        const Calibration calibration = Calibrate(own);
        for (size_t j = count; j < turned.size(); ++j) {
          // Another run of the same strategy would be known from the first.
          const bool is_known =
              std::ranges::any_of(own, [&](const TrainingRun& run) {
                return run.group == turned[j].group;
              });
          if (is_known) continue;
          ++source.count;
          source.before += ErrorOf(turned[j], {});
          source.after += ErrorOf(turned[j], calibration);
        }
        std::ranges::rotate(turned, turned.begin() + 1);
      }
    }
    std::erase_if(sources,
                  [](const auto& entry) { return entry.second.count == 0; });
    const auto source_count = static_cast<double>(sources.size());
    for (const auto& [name, source] : sources) {
      const double weight = source_count * static_cast<double>(source.count);
      score.predictions += source.count;
      score.before += source.before / weight;
      score.after += source.after / weight;
    }
    if (score.predictions > 0) scores.push_back(score);
  }
  return scores;
}

}  // namespace acplan::costmodel
