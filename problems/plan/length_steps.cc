#include "problems/plan/length_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/run/evaluation.h"
#include "graph/run/lasting_storages.h"

namespace acplan::problems {
namespace {

void RequireOneModel(const std::vector<graph::TraceOfLength>& traced) {
  for (size_t k = 1; k < traced.size(); ++k) {
    const graph::TraceOfLength& first = traced.front();
    if (traced[k].length == traced[k - 1].length) {
      throw InputError(
          fmt::format("{}: expected traces of different lengths, found {} as "
                      "in {}",
                      traced[k].name, traced[k].length, traced[k - 1].name));
    }
    const auto difference =
        graph::ModelDifference(first.trace, traced[k].trace);
    if (!difference) continue;
    throw InputError(
        fmt::format("{}: expected a trace of the model and optimizer of {}: {}",
                    traced[k].name, first.name, *difference));
  }
}

}  // namespace

size_t LengthProblem::PlaceOf(int64_t length) const {
  return static_cast<size_t>(
      std::ranges::lower_bound(lengths, length, {},
                               &graph::TraceOfLength::length) -
      lengths.begin());
}

int64_t LengthProblem::Batches() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

size_t LengthProblem::Longest() const {
  size_t place = counts.size() - 1;
  while (counts[place] == 0) --place;
  return place;
}

LengthProblem MakeLengthProblem(std::vector<graph::TraceOfLength> traced,
                                std::vector<graph::LengthStep> order) {
  std::ranges::stable_sort(traced, {}, &graph::TraceOfLength::length);
  RequireOneModel(traced);
  LengthProblem problem{.traced = std::move(traced), .order = std::move(order)};
  std::set<int64_t> lengths;
  for (const graph::LengthStep& step : problem.order) {
    lengths.insert(step.length);
  }
  for (const int64_t length : lengths) {
    problem.lengths.push_back(
        {.length = length,
         .name = fmt::format("length {}", length),
         .trace = graph::TraceAt(problem.traced, length)});
  }
  problem.counts.assign(problem.lengths.size(), 0);
  for (const graph::LengthStep& step : problem.order) {
    if (!step.is_evaluation) ++problem.counts[problem.PlaceOf(step.length)];
  }
  return problem;
}

std::vector<graph::RunShape> LengthSteps::Shapes(
    const LengthProblem& problem) const {
  std::vector<graph::RunShape> shapes;
  const size_t lengths = problem.lengths.size();
  for (size_t k = 0; k < steps.size(); ++k) {
    const StepOfPlan& step = steps[k];
    shapes.push_back({.trace = step.with_segments
                                   ? &*step.with_segments
                                   : &problem.lengths[k % lengths].trace,
                      .step = &step.step,
                      .is_evaluation = k >= lengths});
  }
  return shapes;
}

LengthSteps LiveSteps(
    const LengthProblem& problem,
    const std::function<const std::vector<PlannedModule>&(size_t)>& units) {
  LengthSteps result;
  for (size_t k = 0; k < problem.lengths.size(); ++k) {
    const graph::TraceOfLength& length = problem.lengths[k];
    try {
      result.steps.push_back(LiveStep(
          length.trace,
          problem.counts[k] > 0 ? units(k) : std::vector<PlannedModule>()));
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: {}", length.name, error.what()));
    }
  }
  for (const graph::TraceOfLength& length : problem.lengths) {
    result.steps.push_back(
        {.with_segments = {}, .step = graph::EvaluationOf(length.trace)});
  }
  return result;
}

graph::TrainingRun RunOf(const LengthProblem& problem, const LengthSteps& steps,
                         bool makes_state_first) {
  std::vector<size_t> order;
  for (const graph::LengthStep& step : problem.order) {
    order.push_back(problem.PlaceOf(step.length) +
                    (step.is_evaluation ? problem.lengths.size() : 0));
  }
  return graph::MakeTrainingRun(steps.Shapes(problem), order,
                                {.makes_state_first = makes_state_first});
}

double MeanRecomputeMs(const LengthProblem& problem, const LengthSteps& steps) {
  double sum = 0;
  for (size_t k = 0; k < problem.lengths.size(); ++k) {
    if (problem.counts[k] == 0) continue;
    double ms = 0;
    for (const graph::Simulation::Step& step : steps.steps[k].step.steps) {
      if (step.redone == graph::kNone) continue;
      ms += problem.lengths[k].trace.operators[step.op].runtime_ms;
    }
    sum += ms * static_cast<double>(problem.counts[k]);
  }
  return sum / static_cast<double>(problem.Batches());
}

}  // namespace acplan::problems
