#include "problems/trainers/names.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "graph/profile/sac_statistics.h"

namespace acplan::problems {

namespace {

constexpr std::string_view kTorchOps = "torch.ops.";

std::string WithNearest(const std::string& name,
                        const std::vector<std::string>& known_names) {
  const std::vector<std::string> near =
      graph::NearestNames(name, known_names, 1);
  return graph::Quoted(name) +
         (near.empty() ? "" : "; nearest: " + near.front());
}

}  // namespace

std::vector<std::string> AttentionPatterns() {
  return {"aten._scaled_dot_product_flash_attention.default",
          "aten._scaled_dot_product_efficient_attention.default",
          "aten._scaled_dot_product_cudnn_attention.default",
          "aten._scaled_dot_product_flash_attention_for_cpu.default",
          "*flash_attn*"};
}

std::vector<std::string> Matching(const ConfigNames& names,
                                  const std::vector<std::string>& patterns) {
  std::vector<std::string> matches;
  for (const std::string& name : names.operators) {
    if (std::ranges::any_of(patterns, [&](const std::string& pattern) {
          return graph::MatchesPattern(name, pattern);
        })) {
      matches.push_back(name);
    }
  }
  std::ranges::sort(matches);
  return matches;
}

std::string PythonName(const std::string& operator_name) {
  return std::string(kTorchOps) + operator_name;
}

std::string SavedSet(const std::vector<std::string>& names) {
  std::string text = "SAVED = {\n";
  for (const std::string& name : names) {
    text += fmt::format("    {},\n", PythonName(name));
  }
  return text + "}\n";
}

std::vector<std::string> ReadSaved(const Config& config, std::string_view path,
                                   const ConfigNames& names) {
  std::vector<std::string> saved;
  for (std::string name :
       config.List(path).value_or(std::vector<std::string>())) {
    if (name.starts_with(kTorchOps)) name = name.substr(kTorchOps.size());
    if (std::ranges::find(names.operators, name) == names.operators.end()) {
      FailUnknown(config, path, name, names.operators);
    }
    saved.push_back(std::move(name));
  }
  std::ranges::sort(saved);
  return saved;
}

void FailUnknown(const Config& config, std::string_view path,
                 const std::string& name,
                 const std::vector<std::string>& known_names) {
  config.Fail(path, "a name that the trace has there",
              WithNearest(name, known_names));
}

void FailUnknownValue(const Config& config, std::string_view path,
                      const std::string& value,
                      const std::vector<std::string>& values) {
  config.Fail(path, fmt::format("one of {}", fmt::join(values, ", ")),
              WithNearest(value, values));
}

void RefuseOtherKeys(const Config& config, std::string_view path,
                     const std::vector<std::string>& known_keys) {
  config.RequireTable(path);
  for (const std::string& key : config.Keys(path)) {
    if (std::ranges::find(known_keys, key) == known_keys.end()) {
      FailUnknownValue(config, path, key, known_keys);
    }
  }
}

TrainerPolicy WholeBlocks() { return {.blocks = {.kind = BlockKind::kAll}}; }

BlockChoice ReadClasses(const Config& config, std::string_view path,
                        const ConfigNames& names) {
  BlockChoice choice{
      .kind = BlockKind::kClasses,
      .classes = config.List(path).value_or(std::vector<std::string>())};
  for (const std::string& name : choice.classes) {
    if (std::ranges::find(names.classes, name) == names.classes.end()) {
      FailUnknown(config, path, name, names.classes);
    }
  }
  std::ranges::sort(choice.classes);
  if (choice.classes.empty()) choice.kind = BlockKind::kNone;
  return choice;
}

std::string_view FirstOf(const Config& config,
                         std::initializer_list<std::string_view> paths) {
  for (const std::string_view path : paths) {
    if (config.Has(path)) return path;
  }
  return *paths.begin();
}

void SetReentrant(ConfigReading& reading) {
  reading.policy.stops_early = false;
  reading.notes.emplace_back(
      "use_reentrant: true is simulated as blocks that run again to their end; "
      "the peak can be higher by the gradient of a block's result");
}

ConfigReading ReadLayerCheckpoints(const Config& config,
                                   bool is_on_by_default) {
  const std::string key(
      FirstOf(config, {"activation_checkpointing", "gradient_checkpointing"}));
  RefuseFsdpCheckpoints(config);
  ConfigReading reading;
  if (!config.IsTrue(key, is_on_by_default)) return reading;
  reading.policy = WholeBlocks();
  const std::string options = LayerOptionsPath(config);
  // The options of torch.utils.checkpoint, and those of trainers.
  RefuseOtherKeys(config, options,
                  {"context_fn", "debug", "determinism_check", "early_stop",
                   "every_n_layers", "offload", "preserve_rng_state",
                   "selective", "use_reentrant"});
  reading.policy.stops_early = config.IsTrue(options + ".early_stop", true);
  const int period = config.Whole(options + ".every_n_layers", 1, 1);
  if (period > 1) {
    reading.policy.blocks = {.kind = BlockKind::kEvery, .period = period};
  }
  if (config.IsTrue(options + ".use_reentrant")) SetReentrant(reading);
  if (config.IsTrue(options + ".offload")) {
    reading.notes.push_back(options +
                            ".offload: inputs of blocks go to the host, which "
                            "is not simulated: the peak is lower than below");
  }
  return reading;
}

std::string LayerOptionsPath(const Config& config) {
  return std::string(FirstOf(config, {"activation_checkpointing_kwargs",
                                      "gradient_checkpointing_kwargs"}));
}

void RefuseEveryNth(const Config& config, const TrainerPolicy& policy) {
  if (policy.blocks.kind != BlockKind::kEvery) return;
  config.Fail(LayerOptionsPath(config) + ".every_n_layers",
              "1, as acplan reads every n-th layer for transformers alone");
}

bool HasFsdpCheckpoints(const Config& config) {
  return config.IsTrue(
      FirstOf(config, {"fsdp_config.fsdp_activation_checkpointing",
                       "fsdp_config.activation_checkpointing",
                       "fsdp_activation_checkpointing"}));
}

void RefuseFsdpCheckpoints(const Config& config) {
  if (!HasFsdpCheckpoints(config)) return;
  config.Fail("fsdp_config",
              "no checkpoints by FSDP for this trainer (--for accelerate "
              "reads them)",
              "activation_checkpointing");
}

void NoteCompile(const Config& config,
                 std::initializer_list<std::string_view> paths,
                 ConfigReading& reading) {
  for (const std::string_view path : paths) {
    if (!config.IsOn(path)) continue;
    reading.notes.push_back(
        std::string(path) +
        ": the step is compiled, which is not simulated: it is audited as it "
        "runs without compilation");
    return;
  }
}

}  // namespace acplan::problems
