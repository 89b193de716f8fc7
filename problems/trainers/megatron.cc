#include <fmt/format.h>

#include <algorithm>

#include "graph/base/message_text.h"
#include "problems/language/module_parts.h"
#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// Megatron-Core: the first layers of a pipeline stage, or runs of layers, as a whole; or
// parts of all layers by a fixed list. Its checkpoints run again to their end. Megatron
// Bridge, NeMo and verl hand the same keys on.

namespace acplan::problems {
namespace {

std::string WriteMegatron(const TrainerPolicy& policy, const ConfigNames&) {
  const BlockChoice& blocks = policy.blocks;
  std::string text = "RECOMPUTE_ARGS=(\n";
  const auto add = [&](std::string_view flag, const std::string& value) {
    text += fmt::format("    --recompute-{} {}\n", flag, value);
  };
  switch (blocks.kind) {
    case BlockKind::kNone:
      return "RECOMPUTE_ARGS=()\n";
    case BlockKind::kParts:
      add("granularity", "selective");
      add("modules", fmt::format("{}", fmt::join(blocks.parts, " ")));
      return text + ")\n";
    case BlockKind::kFirst:
      add("granularity", "full");
      add("method", "block");
      add("num-layers", fmt::to_string(blocks.end));
      return text + ")\n";
    case BlockKind::kAll:
    case BlockKind::kRuns:
    case BlockKind::kRange:
    case BlockKind::kEvery:
    case BlockKind::kClasses:
      break;
  }
  add("granularity", "full");
  add("method", "uniform");
  add("num-layers", fmt::to_string(blocks.period));
  return text + ")\n";
}

std::vector<std::string> PartNames() {
  std::vector<std::string> names;
  for (const ModulePart& part : ModuleParts()) names.emplace_back(part.name);
  return names;
}

// Returns the place of the keys in the configurations of Megatron-LM and of what hands them
// on.
std::string PrefixOf(const Config& config) {
  for (const std::string_view prefix :
       {"", "model.", "language_model.", "model.override_transformer_config.",
        "actor_rollout_ref.actor.megatron.override_transformer_config."}) {
    for (const std::string_view key :
         {"recompute_granularity", "recompute_modules", "recompute_method"}) {
      if (config.Has(std::string(prefix) + std::string(key))) {
        return std::string(prefix);
      }
    }
  }
  return "";
}

// Reads recompute_modules.
BlockChoice ReadParts(const Config& config, const std::string& prefix,
                      const ConfigNames& names, ConfigReading& reading) {
  const std::string path = prefix + "recompute_modules";
  BlockChoice choice{.kind = BlockKind::kParts};
  for (const std::string& name :
       config.List(path).value_or(std::vector<std::string>{"core_attn"})) {
    const auto part = std::ranges::find(ModuleParts(), name, &ModulePart::name);
    if (part == ModuleParts().end()) {
      FailUnknownValue(config, path, name, PartNames());
    }
    if (name == "moe_act" && !config.IsTrue(prefix + "moe_grouped_gemm")) {
      config.Fail(path,
                  "moe_act beside moe_grouped_gemm alone, as Megatron-Core",
                  name);
    }
    if (!part->is_module) {
      config.Fail(path,
                  "parts that are modules, as the trace of a function is not "
                  "told apart",
                  name);
    }
    if (std::ranges::find(names.parts, name) == names.parts.end()) {
      reading.notes.push_back(fmt::format(
          "{}: no module of the trace stands for {}, which is left out",
          graph::OneLine(path), name));
      continue;
    }
    choice.parts.push_back(name);
    if (!part->discards_output) continue;
    reading.notes.push_back(fmt::format(
        "{}: what it returns is discarded, and made again when the gradient of "
        "what reads it arrives",
        name));
  }
  std::ranges::sort(choice.parts);
  const auto repeated = std::ranges::unique(choice.parts);
  choice.parts.erase(repeated.begin(), repeated.end());
  if (choice.parts.empty()) choice.kind = BlockKind::kNone;
  return choice;
}

// Reads recompute_method and recompute_num_layers.
BlockChoice ReadLayers(const Config& config, const std::string& prefix,
                       const ConfigNames& names) {
  const std::string path = prefix + "recompute_method";
  const std::string count_path = prefix + "recompute_num_layers";
  const std::string method = config.Text(path).value_or("");
  const auto block_count = static_cast<int32_t>(names.blocks.size());
  const int32_t count = config.Whole(count_path, 1, 0);
  if (method != "uniform" && method != "block") {
    FailUnknownValue(config, path, method, {"block", "uniform"});
  }
  if (count == 0) config.Fail(count_path, "a number of layers", "nothing");
  if (method == "block") {
    if (count >= block_count) return {.kind = BlockKind::kAll};
    return {.kind = BlockKind::kFirst, .end = count};
  }
  if (count == 1) return {.kind = BlockKind::kAll};
  return {.kind = BlockKind::kRuns, .period = count};
}

ConfigReading ReadMegatron(const Config& config, const ConfigNames& names) {
  const std::string prefix = PrefixOf(config);
  const std::string path = prefix + "recompute_granularity";
  ConfigReading reading;
  for (const char* key :
       {"cpu_offloading", "fine_grained_activation_offloading",
        "distribute_saved_activations"}) {
    if (!config.IsTrue(prefix + key)) continue;
    reading.notes.push_back(prefix + key +
                            ": what is kept is elsewhere, which is not "
                            "simulated: the peak is lower "
                            "than below");
  }
  if (config.IsTrue(prefix + "mtp_use_repeated_layer")) {
    reading.notes.push_back(prefix + "mtp_use_repeated_layer: not simulated");
  }
  std::string granularity = config.Text(path).value_or("");
  if (granularity.empty() && config.IsTrue("recompute_activations")) {
    granularity = "selective";
  }
  if (granularity.empty() || granularity == "None") return reading;
  if (granularity == "full") {
    reading.policy.blocks = ReadLayers(config, prefix, names);
  } else if (granularity == "selective") {
    reading.policy.blocks = ReadParts(config, prefix, names, reading);
  } else {
    FailUnknownValue(config, path, granularity, {"full", "selective"});
  }
  if (reading.policy.blocks.kind == BlockKind::kNone) return reading;
  reading.policy.stops_early = false;
  reading.notes.emplace_back(
      "Megatron's checkpoints run again to their end; the peak can be higher "
      "by the gradient of a unit's result, and with core_attn by a copy of the "
      "gradient of its queries");
  return reading;
}

bool IsLikeMegatron(const Config& config) {
  const std::string prefix = PrefixOf(config);
  return !prefix.empty() || config.Has("recompute_granularity") ||
         config.Has("recompute_activations") ||
         config.Has("tensor_model_parallel_size") ||
         config.Has("model.tensor_model_parallel_size");
}

}  // namespace

Trainer MegatronTrainer() {
  return {.name = "megatron",
          .version = "megatron-core 0.20.0",
          .place =
              "the launch script; Megatron Bridge has the same keys in "
              "`model`",
          .language = {.blocks = {BlockKind::kAll, BlockKind::kFirst,
                                  BlockKind::kParts, BlockKind::kRuns},
                       .stops_early = false},
          .format = ConfigFormat::kFlags,
          .write = WriteMegatron,
          .read = ReadMegatron,
          .is_like = IsLikeMegatron};
}

}  // namespace acplan::problems
