#include "problems/plan/length_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/run/data_parallel.h"
#include "graph/run/evaluation.h"
#include "graph/run/lasting_storages.h"

namespace acplan::problems {
namespace {

// Sorts the traces by length. Throws InputError unless their lengths differ, and they are
// of the same model as `first`.
void Sort(std::vector<graph::TraceOfLength>& traced,
          const graph::TraceOfLength& first) {
  std::ranges::stable_sort(traced, {}, &graph::TraceOfLength::length);
  for (size_t k = 0; k < traced.size(); ++k) {
    if (k > 0 && traced[k].length == traced[k - 1].length) {
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

graph::Trace EvaluationAt(const std::vector<graph::TraceOfLength>& evaluated,
                          int64_t length) {
  try {
    return graph::TraceAt(evaluated, length);
  } catch (const InputError& error) {
    throw InputError(fmt::format("evaluations: {}", error.what()));
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

const graph::Trace& LengthProblem::EvaluationTrace(size_t place) const {
  return evaluations.empty() ? lengths[place].trace : evaluations[place];
}

LengthProblem MakeLengthProblem(std::vector<graph::TraceOfLength> traced,
                                std::vector<graph::LengthStep> order,
                                std::vector<graph::TraceOfLength> evaluated) {
  const graph::TraceOfLength first = traced.front();
  Sort(traced, first);
  Sort(evaluated, first);
  LengthProblem problem{.traced = std::move(traced), .order = std::move(order)};
  // The batches of training, and the evaluations, of each length.
  std::map<int64_t, std::array<int64_t, 2>> lengths;
  for (const graph::LengthStep& step : problem.order) {
    ++lengths[step.length][step.is_evaluation ? 1 : 0];
  }
  for (const auto& [length, counts] : lengths) {
    graph::Trace evaluation;
    if (!evaluated.empty() && counts[1] > 0) {
      evaluation = EvaluationAt(evaluated, length);
    }
    const bool is_trained = evaluated.empty() || counts[0] > 0;
    problem.lengths.push_back(
        {.length = length,
         .name = fmt::format("length {}", length),
         .trace =
             is_trained ? graph::TraceAt(problem.traced, length) : evaluation});
    problem.counts.push_back(counts[0]);
    if (!evaluated.empty())
      problem.evaluations.push_back(std::move(evaluation));
  }
  return problem;
}

std::vector<graph::RunShape> LengthSteps::Shapes(
    const LengthProblem& problem) const {
  std::vector<graph::RunShape> shapes;
  const size_t lengths = problem.lengths.size();
  for (size_t k = 0; k < steps.size(); ++k) {
    const StepOfPlan& step = steps[k];
    const bool is_evaluation = k >= lengths;
    const graph::Trace& trace = is_evaluation
                                    ? problem.EvaluationTrace(k - lengths)
                                    : problem.lengths[k].trace;
    shapes.push_back(
        {.trace = step.with_segments ? &*step.with_segments : &trace,
         .step = &step.step,
         .is_evaluation = is_evaluation});
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
  for (size_t k = 0; k < problem.lengths.size(); ++k) {
    result.steps.push_back(
        {.with_segments = {},
         .step = graph::EvaluationOf(problem.EvaluationTrace(k))});
  }
  return result;
}

void RequireDataParallel(const LengthProblem& problem,
                         const graph::DdpOptions& options,
                         std::string_view what) {
  std::set<std::pair<int64_t, bool>> steps;
  for (const graph::LengthStep& step : problem.order) {
    steps.emplace(step.length, step.is_evaluation);
  }
  for (const auto& [length, is_evaluation] : steps) {
    const size_t place = problem.PlaceOf(length);
    const graph::Trace& trace = is_evaluation ? problem.EvaluationTrace(place)
                                              : problem.lengths[place].trace;
    graph::RequireDataParallel(trace, options,
                               fmt::format("{}: length {}", what, length));
  }
}

graph::TrainingRun RunOf(const LengthProblem& problem, const LengthSteps& steps,
                         const graph::RunOptions& options) {
  if (options.ddp) RequireDataParallel(problem, *options.ddp, "device: ddp");
  std::vector<size_t> order;
  for (const graph::LengthStep& step : problem.order) {
    order.push_back(problem.PlaceOf(step.length) +
                    (step.is_evaluation ? problem.lengths.size() : 0));
  }
  return graph::MakeTrainingRun(steps.Shapes(problem), order, options);
}

graph::TrainingRun RunOf(const LengthProblem& problem, const LengthSteps& steps,
                         const DeviceSetting& setting) {
  return RunOf(problem, steps, RunOptionsOf(setting));
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
