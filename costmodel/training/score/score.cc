#include "costmodel/training/score/score.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "costmodel/training/memory/step_memory.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

Prediction Expected(const TrainingRun& run) {
  return {.id = run.id,
          .source = run.source,
          .measured_seconds = run.seconds,
          .measured_gib = run.is_allocated ? run.memory_gib : 0,
          .has_experts = run.job && run.job->shape.IsMoe()};
}

struct SourceErrors {
  std::vector<double> errors = {};
  size_t total = 0;
};

}  // namespace

double MedianOf(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

std::vector<Prediction> PredictRuns(const std::vector<TrainingRun>& runs) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  std::vector<Prediction> predictions;
  for (const TrainingRun& run : runs) {
    Prediction prediction = Expected(run);
    prediction.reason = run.reason;
    if (run.job) {
      try {
        const TrainingJob job = WithFastestMicrobatch(*run.job);
        prediction.time = PredictStepTime(job);
        prediction.seconds = prediction.time.Total();
        prediction.kind = KindOfRun(job, prediction.time);
        prediction.memory_gib = PredictStepMemory(job).Worst().Total() / kGiB;
      } catch (const InputError& error) {
        prediction.reason = error.what();
      }
    }
    predictions.push_back(std::move(prediction));
  }
  return predictions;
}

ErrorSummary Summarise(std::string name, const std::vector<double>& errors,
                       size_t total) {
  ErrorSummary summary{
      .name = std::move(name), .rows = errors.size(), .total = total};
  std::vector<double> sizes;
  for (const double error : errors) {
    const double size = std::abs(error);
    sizes.push_back(size);
    summary.mean += size / static_cast<double>(errors.size());
    summary.bias += error / static_cast<double>(errors.size());
    if (size > std::abs(summary.worst)) summary.worst = error;
  }
  summary.median = MedianOf(std::move(sizes));
  return summary;
}

Score ScorePredictions(const std::vector<Prediction>& predictions) {
  std::map<std::string, SourceErrors> sources;
  SourceErrors all;
  std::map<bool, SourceErrors>
      families;  // indexed by whether there are experts
  SourceErrors memory;
  for (const Prediction& prediction : predictions) {
    SourceErrors& source = sources[prediction.source];
    ++source.total;
    ++all.total;
    if (prediction.seconds > 0) {
      const double error = prediction.seconds / prediction.measured_seconds - 1;
      source.errors.push_back(error);
      all.errors.push_back(error);
      families[prediction.has_experts].errors.push_back(error);
      ++families[prediction.has_experts].total;
    }
    if (prediction.measured_gib == 0) continue;
    ++memory.total;
    if (prediction.memory_gib > 0) {
      memory.errors.push_back(prediction.memory_gib / prediction.measured_gib -
                              1);
    }
  }
  Score score;
  for (const auto& [name, source] : sources) {
    if (source.errors.empty()) continue;
    score.sources.push_back(Summarise(name, source.errors, source.total));
  }
  if (score.sources.empty()) return score;
  score.all = Summarise("all", all.errors, all.total);
  for (const auto& [has_experts, family] : families) {
    if (families.size() < 2) break;
    score.families.push_back(Summarise(has_experts ? "experts" : "dense",
                                       family.errors, family.total));
  }
  const double count = static_cast<double>(score.sources.size());
  for (const ErrorSummary& source : score.sources) {
    score.mean_of_sources += source.mean / count;
    score.median_of_sources += source.median / count;
  }
  if (!memory.errors.empty()) {
    score.memory = Summarise("memory", memory.errors, memory.total);
  }
  return score;
}

std::vector<Prediction> OtherPredictions(const std::vector<TrainingRun>& runs,
                                         const graph::CsvTable& table,
                                         std::string_view column) {
  std::map<std::string, double, std::less<>> seconds_by_id;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const graph::CsvRow row(table, i);
    if (!row.Has("id")) row.Fail("id", "the name of a run");
    if (row.Has(column)) seconds_by_id[row.Text("id")] = row.Positive(column);
  }
  std::vector<Prediction> predictions;
  for (const TrainingRun& run : runs) {
    Prediction prediction = Expected(run);
    const auto entry = seconds_by_id.find(run.id);
    if (entry != seconds_by_id.end()) prediction.seconds = entry->second;
    predictions.push_back(std::move(prediction));
  }
  return predictions;
}

}  // namespace acplan::costmodel
