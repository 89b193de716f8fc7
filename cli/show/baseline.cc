#include "problems/plan/baseline.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/planning/peak_place.h"
#include "cli/planning/streams_text.h"
#include "cli/show/views.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/check/plan_check.h"

namespace acplan::cli {

namespace {

struct BaselineAnswer {
  std::string model;
  problems::MemoryOptions memory;
  problems::PlanBaseline baseline;
  problems::PlanEffect effect;  // on one rank
  problems::PlanEffect sharded;
  problems::StepTime time;
  std::string peak_place;
  std::optional<graph::StreamTimes> streams = {};
};

BaselineAnswer Compute(const ProfileInput& input,
                       const problems::MemoryOptions& memory) {
  const graph::Profile& profile = input.profile;
  const graph::ModuleTree tree(profile);
  problems::MemoryOptions unsharded = memory;
  unsharded.world_size = 1;
  BaselineAnswer answer{
      .model = profile.model.name,
      .memory = memory,
      .baseline = ComputeBaseline(profile, tree, memory, input.TraceIfAny()),
      .effect =
          ComputeEffect(profile, {}, unsharded, "pareto", input.TraceIfAny()),
      .sharded =
          ComputeEffect(profile, {}, memory, "pareto", input.TraceIfAny()),
      .time = problems::ComputeStepTime(profile, tree),
      .peak_place = {}};
  const std::string otherwise =
      fmt::format("{} ({})", answer.baseline.peak_module,
                  ToString(answer.effect.peak_phase));
  answer.peak_place = PeakPlace(input.TraceIfAny(), {}, unsharded, otherwise);
  answer.streams = StreamTimesOf(input.TraceIfAny(), {});
  return answer;
}

std::string ToJson(const BaselineAnswer& answer) {
  nlohmann::ordered_json json;
  json["model"] = answer.model;
  json["memory_model"] = ToString(answer.memory.model);
  json["without_states"] = answer.memory.without_states;
  json["peak_bytes"] = answer.baseline.peak_bytes;
  json["peak_module"] = answer.baseline.peak_module;
  json["peak_phase"] = ToString(answer.effect.peak_phase);
  json["persistent_bytes"] = answer.effect.persistent_bytes;
  json["activation_bytes"] = answer.effect.activation_bytes;
  json["world_size"] = answer.memory.world_size;
  json["sharded_peak_bytes"] = answer.sharded.peak_bytes;
  json["runtime_ms"] = answer.baseline.runtime_ms;
  json["forward_ms"] = answer.time.forward_ms;
  json["backward_ms"] = answer.time.backward_ms;
  if (answer.streams) json["streams"] = cli::ToJson(*answer.streams);
  return graph::IndentedText(json);
}

std::string ToText(const BaselineAnswer& answer, const Terminal& terminal) {
  const auto& [model, memory, baseline, effect, sharded, time, peak_place,
               streams] = answer;
  using enum Table::Align;
  Table table({kLeft, kRight, kLeft});
  const auto bytes = [](double b) {
    return graph::FormatBytes(static_cast<int64_t>(b));
  };
  table.AddRow({"baseline of " + graph::OneLine(model),
                std::string(ToString(memory.model)),
                memory.without_states ? "without states" : ""});
  table.AddRow({"peak memory", bytes(static_cast<double>(baseline.peak_bytes)),
                fmt::format("{} bytes, at {}", FormatCount(baseline.peak_bytes),
                            peak_place)});
  table.AddRow({"  persistent", bytes(effect.persistent_bytes),
                memory.model == problems::MemoryModel::kTorch
                    ? "parameters and gradients"
                    : "parameters, gradients, states, buffers, inputs"});
  table.AddRow({"  activations", bytes(effect.activation_bytes),
                "activations, their gradients, temporaries"});
  if (memory.world_size > 1) {
    table.AddRow({"a rank's peak",
                  bytes(static_cast<double>(sharded.peak_bytes)),
                  fmt::format("sharded over {} ranks, at {}", memory.world_size,
                              sharded.peak_module)});
  }
  table.AddRow(
      {"step time", FormatMs(baseline.runtime_ms),
       fmt::format("forward {}, backward {}", FormatMs(time.forward_ms),
                   FormatMs(time.backward_ms))});
  return table.ToString(terminal) + StreamsText("on streams", streams);
}

}  // namespace

void ShowBaseline(const ShowFlags& flags, const ProfileInput& input,
                  const Terminal& terminal) {
  const BaselineAnswer answer = Compute(input, flags.memory.Resolve(input));
  terminal.Print(flags.json ? ToJson(answer)
                            : BrokenLines(ToText(answer, terminal), terminal));
}

}  // namespace acplan::cli
