#include "costmodel/training/score/stack_factors.h"

#include <map>
#include <string>
#include <utility>

namespace acplan::costmodel {

namespace {

struct Stack {
  std::map<std::string, size_t> halves = {};  // the half of each group
  std::vector<double> ratios[2] = {};         // measured divided by predicted
};

}  // namespace

std::vector<Prediction> ApplyStackFactors(
    const std::vector<TrainingRun>& runs,
    const std::vector<Prediction>& predictions) {
  std::map<std::string, Stack> stacks;
  std::vector<size_t> halves;
  for (size_t i = 0; i < runs.size(); ++i) {
    Stack& stack = stacks[runs[i].stack];
    const size_t next = stack.halves.size() % 2;
    const size_t half = stack.halves.emplace(runs[i].group, next).first->second;
    halves.push_back(half);
    const Prediction& prediction = predictions[i];
    if (prediction.seconds == 0) continue;
    stack.ratios[half].push_back(prediction.measured_seconds /
                                 prediction.seconds);
  }
  std::vector<Prediction> scaled = predictions;
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::vector<double>& ratios =
        stacks[runs[i].stack].ratios[1 - halves[i]];
    scaled[i].seconds *= ratios.empty() ? 0 : MedianOf(ratios);
    if (ratios.empty()) {
      scaled[i].reason = "no run of its stack is in the other half";
    }
  }
  return scaled;
}

}  // namespace acplan::costmodel
