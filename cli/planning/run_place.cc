#include "cli/planning/run_place.h"

#include <fmt/format.h>

#include <cstddef>
#include <nlohmann/json.hpp>

#include "cli/planning/step_names.h"

namespace acplan::cli {

using graph::RunMoment;
using graph::Trace;
using nlohmann::ordered_json;

const graph::Simulation::Step* StepAt(const StepInRun& of_run,
                                      const RunMoment& moment) {
  const auto& steps = of_run.step->steps;
  const bool is_one =
      moment.step != graph::kNone && moment.step < steps.end_id();
  return is_one ? &steps[moment.step] : nullptr;
}

std::string PlaceInRunText(const StepInRun& of_run,
                           const graph::TrainingRun& run, int64_t event) {
  const RunMoment& moment = run.moments[static_cast<size_t>(event)];
  if (moment.iteration < 0) return "the model, as it is put on the device";
  const std::string iteration =
      fmt::format("iteration {}", moment.iteration + 1);
  if (const auto* step = StepAt(of_run, moment)) {
    return fmt::format("{}, {}", iteration, StepText(*of_run.trace, *step));
  }
  return fmt::format("the {} of {}",
                     moment.step == graph::kNone ? "begin" : "end", iteration);
}

ordered_json PlaceInRunJson(const StepInRun& of_run,
                            const graph::TrainingRun& run, int64_t event) {
  const RunMoment& moment = run.moments[static_cast<size_t>(event)];
  ordered_json json = {{"event", event},
                       {"iteration", moment.iteration + 1},
                       {"microbatch", moment.microbatch + 1}};
  const Trace& trace = *of_run.trace;
  if (const auto* step = StepAt(of_run, moment)) {
    json["step"] = IndexOf(moment.step);
    json["operator"] = NameOf(trace, *step);
    json["phase"] = PhaseOf(trace, *step);
    json["module"] = ModuleOf(trace, *step);
    json["source"] = graph::SourceOf(trace, step->op);
  }
  return json;
}

std::string MakerOf(const Trace& trace, graph::StorageId storage) {
  if (storage == graph::kOfDdp) return "DistributedDataParallel";
  const graph::TraceStorage& block = trace.storages[storage];
  const std::string source = graph::SourceOf(trace, block.born);
  if (!source.empty()) return source;
  if (block.born == graph::kNone)
    return fmt::format("{}s", ToString(block.category));
  return std::string(NameOf(trace, {.op = block.born}));
}

}  // namespace acplan::cli
