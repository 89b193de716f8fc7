#include "cli/training/confidence_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/terminal/human_numbers.h"
#include "cli/terminal/text.h"
#include "cli/training/strategy_text.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

namespace {

using costmodel::Confidence;
using costmodel::RankedStrategy;

constexpr int kShare = static_cast<int>(100 * costmodel::kIntervalShare + .5);

std::string RangeText(const costmodel::Interval& interval, double seconds) {
  return fmt::format("{} to {} ({})", HumanSeconds(interval.low * seconds),
                     HumanSeconds(interval.high * seconds),
                     IntervalCell(interval));
}

std::string NearestText(const Confidence& confidence) {
  const std::string_view generation =
      confidence.has_generation
          ? ""
          : "\nno run on a GPU of this generation was measured";
  if (confidence.nearest.empty()) {
    return fmt::format("no measured run is near: an extrapolation{}",
                       generation);
  }
  return fmt::format(
      "nearest measured run: {}, {:.1f} away{}{}", confidence.nearest,
      confidence.distance,
      confidence.IsMeasured() ? "" : ", so outside of measured territory",
      generation);
}

std::vector<costmodel::NextRuns> NextRunsOf(
    const costmodel::TrainingJob& job, const costmodel::StrategySearch& search,
    const costmodel::IntervalModel& intervals) {
  std::vector<costmodel::PredictedRun> predicted;
  for (const RankedStrategy& ranked : search.best) {
    if (predicted.size() == costmodel::kMostPredicted) break;
    const costmodel::RunKind kind = costmodel::KindOfRanked(job, ranked);
    predicted.push_back(
        {ranked.seconds, kind, intervals.At(kind).interval.Width()});
  }
  return costmodel::ChooseNextRuns(predicted, intervals.choice_errors());
}

}  // namespace

std::string IntervalCell(const costmodel::Interval& interval) {
  return fmt::format("{:+.0f} {:+.0f}%", 100 * (interval.low - 1),
                     100 * (interval.high - 1));
}

std::string ConfidenceText(const Confidence& confidence, double seconds) {
  return fmt::format("{}% of measured times of this kind: {}\n{}\n", kShare,
                     RangeText(confidence.interval, seconds),
                     NearestText(confidence));
}

nlohmann::ordered_json ConfidenceJson(const Confidence& confidence,
                                      double seconds) {
  nlohmann::ordered_json nearest;
  if (!confidence.nearest.empty()) nearest = confidence.nearest;
  return {{"share", costmodel::kIntervalShare},
          {"low_s", confidence.interval.low * seconds},
          {"high_s", confidence.interval.high * seconds},
          {"nearest_run", nearest},
          {"distance", confidence.distance},
          {"is_measured", confidence.IsMeasured()}};
}

nlohmann::ordered_json CalibrationJson(
    const costmodel::Calibration& calibration) {
  return {{"runs", calibration.runs},
          {"computation", calibration.computation},
          {"communication", calibration.communication},
          {"host", calibration.host},
          {"error_before", calibration.error_before},
          {"error_after", calibration.error_after}};
}

std::string MeasuredText(const costmodel::TrainingJob& job,
                         const costmodel::StrategySearch& search,
                         const TrainQuestion& question) {
  if (!search.measured) {
    return "no strategy that fits is within measured territory (a distance of "
           "1): the order is an extrapolation, measure a few\n";
  }
  const RankedStrategy& ranked = *search.measured;
  const Confidence confidence =
      question.intervals->At(costmodel::KindOfRanked(job, ranked));
  const bool is_first =
      ranked.seconds == search.best[0].seconds &&
      StrategyText(ranked.strategy) == StrategyText(search.best[0].strategy);
  return fmt::format(
      "fastest within measured territory: {}\n{}\n",
      is_first ? std::string("the first")
               : fmt::format("{}, mbs {}, recompute {}:\n{} predicted, {}% of "
                             "measured times {}",
                             StrategyText(ranked.strategy),
                             ranked.strategy.microbatch,
                             RecomputationText(ranked.strategy),
                             HumanSeconds(ranked.seconds), kShare,
                             RangeText(confidence.interval, ranked.seconds)),
      NearestText(confidence));
}

std::string NextRunsText(const costmodel::TrainingJob& job,
                         const costmodel::StrategySearch& search,
                         const costmodel::IntervalModel& intervals) {
  const std::vector<costmodel::NextRuns> next =
      NextRunsOf(job, search, intervals);
  if (next.size() < 3) return "";
  const auto ranks = [](const std::vector<size_t>& runs) {
    std::string text;
    for (size_t i = 0; i < runs.size(); ++i) {
      const bool is_last = i + 1 == runs.size();
      text += fmt::format("{}{}",
                          i == 0    ? ""
                          : is_last ? " and "
                                    : ", ",
                          runs[i] + 1);
    }
    return text;
  };
  return fmt::format(
      "the fastest by prediction is expected to lose {:.1f}% to the best of "
      "these; once {}\nare measured, the choice loses {:.1f}%; once {} are, "
      "{:.1f}%\n",
      100 * next[0].regret, ranks(next[1].runs), 100 * next[1].regret,
      ranks(next[2].runs), 100 * next[2].regret);
}

nlohmann::ordered_json NextRunsJson(const costmodel::TrainingJob& job,
                                    const costmodel::StrategySearch& search,
                                    const costmodel::IntervalModel& intervals) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const costmodel::NextRuns& next : NextRunsOf(job, search, intervals)) {
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    for (const size_t run : next.runs) ranks.push_back(run + 1);
    json.push_back(
        {{"measure", std::move(ranks)}, {"expected_regret", next.regret}});
  }
  return json;
}

std::string CoverageText(const std::vector<costmodel::Coverage>& coverages,
                         const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight});
  table.AddRow({"intervals of other sources", "runs", "inside %", "width %"});
  for (const costmodel::Coverage& coverage : coverages) {
    table.AddRow({coverage.name, fmt::to_string(coverage.runs),
                  fmt::format("{:.1f}", 100 * coverage.Share()),
                  fmt::format("{:.0f}", 100 * coverage.width)});
  }
  return table.ToString(terminal) +
         fmt::format(
             "an interval is to contain {}%; width: the median of its "
             "upper end by its lower end - 1\n",
             kShare);
}

std::string CoverageJson(const std::vector<costmodel::Coverage>& coverages) {
  nlohmann::ordered_json json = {{"share", costmodel::kIntervalShare}};
  json["kinds"] = nlohmann::ordered_json::array();
  for (const costmodel::Coverage& coverage : coverages) {
    json["kinds"].push_back({{"name", coverage.name},
                             {"runs", coverage.runs},
                             {"inside", coverage.inside_runs},
                             {"width", coverage.width}});
  }
  return graph::IndentedText(json);
}

}  // namespace acplan::cli
