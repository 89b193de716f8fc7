#include "cli/planning/run_place.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>

#include "cli/planning/step_names.h"

namespace acplan::cli {

using graph::RunMoment;
using graph::Trace;
using nlohmann::ordered_json;

namespace {

const graph::LengthStep& BatchOf(const RunSteps& steps,
                                 const RunMoment& moment) {
  return steps.batches[static_cast<size_t>(moment.iteration)];
}

std::string IterationText(const RunSteps& steps, const RunMoment& moment) {
  if (steps.batches.empty()) {
    return fmt::format("iteration {}", moment.iteration + 1);
  }
  const graph::LengthStep& batch = BatchOf(steps, moment);
  return fmt::format("batch {}{} of length {}", moment.iteration + 1,
                     batch.is_evaluation ? ", an evaluation" : "",
                     batch.length);
}

}  // namespace

const Trace& RunSteps::TraceOf(const RunMoment& moment) const {
  return *shapes[static_cast<size_t>(moment.shape)].trace;
}

const graph::Simulation::Step* StepAt(const RunSteps& steps,
                                      const RunMoment& moment) {
  const auto& ran = steps.shapes[static_cast<size_t>(moment.shape)].step->steps;
  const bool is_one = moment.step != graph::kNone && moment.step < ran.end_id();
  return is_one ? &ran[moment.step] : nullptr;
}

std::string PlaceInRunText(const RunSteps& steps, const graph::TrainingRun& run,
                           int64_t event) {
  const RunMoment& moment = run.moments[static_cast<size_t>(event)];
  if (moment.iteration < 0) return "the model, as it is put on the device";
  const std::string iteration = IterationText(steps, moment);
  if (const auto* step = StepAt(steps, moment)) {
    return fmt::format("{}, {}", iteration,
                       StepText(steps.TraceOf(moment), *step));
  }
  return fmt::format("the {} of {}",
                     moment.step == graph::kNone ? "begin" : "end", iteration);
}

ordered_json PlaceInRunJson(const RunSteps& steps,
                            const graph::TrainingRun& run, int64_t event) {
  const RunMoment& moment = run.moments[static_cast<size_t>(event)];
  ordered_json json = {{"event", event}};
  if (steps.batches.empty()) {
    json["iteration"] = moment.iteration + 1;
    json["microbatch"] = moment.microbatch + 1;
  } else {
    json["batch"] = moment.iteration + 1;
    if (moment.iteration < 0) return json;
    const graph::LengthStep& batch = BatchOf(steps, moment);
    json["length"] = batch.length;
    json["evaluation"] = batch.is_evaluation;
  }
  const Trace& trace = steps.TraceOf(moment);
  if (const auto* step = StepAt(steps, moment)) {
    json["step"] = IndexOf(moment.step);
    json["operator"] = NameOf(trace, *step);
    json["phase"] = PhaseOf(trace, *step);
    json["module"] = ModuleOf(trace, *step);
    json["source"] = graph::SourceOf(trace, step->op);
  }
  return json;
}

std::string MakerOf(const RunSteps& steps, const graph::TrainingRun& run,
                    int64_t event) {
  const graph::StorageId id = run.StorageAt(event);
  if (id == graph::kOfDdp) return "DistributedDataParallel";
  const Trace& trace =
      steps.TraceOf(run.moments[static_cast<size_t>(event)]);
  const graph::TraceStorage& storage = trace.storages[id];
  const std::string source = graph::SourceOf(trace, storage.born);
  if (!source.empty()) return source;
  if (storage.born == graph::kNone)
    return fmt::format("{}s", ToString(storage.category));
  return std::string(NameOf(trace, {.op = storage.born}));
}

}  // namespace acplan::cli
