#include "costmodel/training/score/decisions.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

namespace acplan::costmodel {
namespace {

constexpr size_t kLeastStrategies = 3;
constexpr size_t kShortList = 3;
constexpr double kGoodRegret = .05;

struct Choice {
  double predicted = 0;
  double measured = 0;
  RunKind kind = {};
};

double KendallTau(const std::vector<Choice>& choices) {
  double sum = 0;
  double pairs = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const double measured = choices[i].measured - choices[j].measured;
      const double predicted = choices[i].predicted - choices[j].predicted;
      if (measured == 0) continue;
      ++pairs;
      const double product = measured * predicted;
      sum += product > 0 ? 1 : product < 0 ? -1 : 0;
    }
  }
  return pairs > 0 ? sum / pairs : 0;
}

// Returns what measuring brings among choices, the fastest by prediction first.
std::array<DecisionScore::Measuring, 3> MeasuringOf(
    std::span<const Choice> choices, const IntervalModel& intervals) {
  const double best =
      std::ranges::min_element(choices, {}, &Choice::measured)->measured;
  std::vector<PredictedRun> predicted;
  for (const Choice& choice :
       choices.first(std::min(choices.size(), kMostPredicted))) {
    predicted.push_back({choice.predicted, choice.kind,
                         intervals.At(choice.kind).interval.Width()});
  }
  const ChoiceErrors& errors = intervals.choice_errors();
  std::array<DecisionScore::Measuring, 3> measuring = {};
  const std::vector<NextRuns> next = ChooseNextRuns(predicted, errors);
  for (size_t i = 0; i < next.size(); ++i) {
    std::vector<double> seconds;
    for (const size_t run : next[i].runs) {
      seconds.push_back(choices[run].measured);
    }
    const size_t choice =
        FastestAfter(predicted, errors, next[i].runs, seconds);
    measuring[i] = {next[i].regret, choices[choice].measured / best - 1};
  }
  return measuring;
}

// Adds a group; sums become means later.
void AddGroup(std::vector<Choice> choices, const IntervalModel* intervals,
              DecisionScore& score) {
  std::ranges::stable_sort(choices, {}, &Choice::predicted);
  const double best =
      std::ranges::min_element(choices, {}, &Choice::measured)->measured;
  const auto regret = [&](const Choice& choice) {
    return choice.measured / best - 1;
  };
  const auto count = static_cast<double>(choices.size());
  double least = regret(choices[0]);
  for (size_t i = 0; i < kShortList; ++i) {
    least = std::min(least, regret(choices[i]));
  }
  ++score.groups;
  score.runs += choices.size();
  score.regret += regret(choices[0]);
  score.regret_of_three += least;
  score.good_share += regret(choices[0]) <= kGoodRegret ? 1 : 0;
  for (const Choice& choice : choices) {
    score.chance_regret += regret(choice) / count;
    score.chance_good_share += (regret(choice) <= kGoodRegret ? 1 : 0) / count;
  }
  score.kendall_tau += KendallTau(choices);
  if (intervals == nullptr) return;
  const auto measuring = MeasuringOf(choices, *intervals);
  for (size_t i = 0; i < measuring.size(); ++i) {
    score.measuring[i].expected_regret += measuring[i].expected_regret;
    score.measuring[i].regret += measuring[i].regret;
  }
}

}  // namespace

DecisionScore ScoreDecisions(const std::vector<TrainingRun>& runs,
                             const std::vector<Prediction>& predictions,
                             const IntervalModel* intervals) {
  std::map<std::string, std::vector<Choice>> groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (predictions[i].seconds == 0) continue;
    groups[runs[i].question].push_back(
        {predictions[i].seconds, runs[i].seconds, predictions[i].kind});
  }
  DecisionScore score;
  for (auto& [question, choices] : groups) {
    if (choices.size() < kLeastStrategies) continue;
    AddGroup(std::move(choices), intervals, score);
  }
  const auto count = static_cast<double>(std::max<size_t>(1, score.groups));
  for (double* sum :
       {&score.regret, &score.regret_of_three, &score.chance_regret,
        &score.good_share, &score.chance_good_share, &score.kendall_tau}) {
    *sum /= count;
  }
  for (DecisionScore::Measuring& measuring : score.measuring) {
    measuring.expected_regret /= count;
    measuring.regret /= count;
  }
  return score;
}

}  // namespace acplan::costmodel
