#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// axolotl: gradient checkpointing of transformers' layers; `selective_checkpointing.save`
// lists parts of qualified names, and "attention" for all attention operators.

namespace acplan::problems {
namespace {

constexpr std::string_view kAttention = "attention";

std::string WriteAxolotl(const TrainerPolicy& policy, const ConfigNames&) {
  if (policy.blocks.kind == BlockKind::kNone) {
    return "gradient_checkpointing: false\n";
  }
  std::string text =
      "gradient_checkpointing: true\n"
      "gradient_checkpointing_kwargs:\n"
      "  use_reentrant: false\n";
  if (policy.saved.empty()) return text;
  text +=
      "selective_checkpointing:\n"
      "  save_sliding_window: true\n"
      "  save:\n";
  for (const std::string& name : policy.saved) {
    text += fmt::format("    - \"{}\"\n", QualifiedName(name));
  }
  return text;
}

// Adds the operators that an entry of `save` means.
void AddMeant(const Config& config, const std::string& entry,
              const ConfigNames& names, std::set<std::string>& saved) {
  std::vector<std::string> operators;
  std::vector<std::string> qualified_names;
  if (entry == kAttention) {
    operators = Matching(names, AttentionPatterns());
  }
  for (const std::string& name : names.operators) {
    qualified_names.push_back(QualifiedName(name));
    const bool is_part =
        qualified_names.back().find(entry) != std::string::npos;
    if (entry != kAttention && is_part) operators.push_back(name);
  }
  if (operators.empty() && entry != kAttention) {
    qualified_names.emplace_back(kAttention);
    FailUnknown(config, "selective_checkpointing.save", entry, qualified_names);
  }
  saved.insert(operators.begin(), operators.end());
}

// trl's offloader, which these values turn on, takes the place of checkpoints.
void RefuseOffloader(const Config& config, ConfigReading& reading) {
  const std::string key = "activation_offloading";
  if (config.Text("gradient_checkpointing").value_or("").starts_with("offl")) {
    config.Fail("gradient_checkpointing",
                "true or false, as offloading in place of checkpoints is not "
                "simulated");
  }
  if (!config.IsOn(key)) return;
  if (config.Text(key) != "hidden_states") {
    config.Fail(key,
                "false or hidden_states, as offloading in place of checkpoints "
                "is not simulated");
  }
  reading.notes.push_back(
      key +
      ": inputs of blocks go to the host, which is not simulated: the peak is "
      "lower than below");
}

void ReadSelective(const Config& config, const ConfigNames& names,
                   TrainerPolicy& policy) {
  const std::string key = "selective_checkpointing";
  for (const char* option : {".offload", ".recompute_layer_types"}) {
    if (config.IsOn(key + option)) {
      config.Fail(key + option, "nothing, as acplan does not simulate it here");
    }
  }
  policy.stops_early = true;
  std::set<std::string> saved;
  for (const std::string& entry :
       config.List(key + ".save")
           .value_or(std::vector<std::string>{std::string(kAttention)})) {
    AddMeant(config, entry, names, saved);
  }
  policy.saved.assign(saved.begin(), saved.end());
}

ConfigReading ReadAxolotl(const Config& config, const ConfigNames& names) {
  ConfigReading reading;
  RefuseOffloader(config, reading);
  ConfigReading layers = ReadLayerCheckpoints(config, false);
  reading.policy = layers.policy;
  RefuseEveryNth(config, reading.policy);
  std::ranges::move(layers.notes, std::back_inserter(reading.notes));
  NoteCompile(config, {"torch_compile"}, reading);
  if (reading.policy.blocks.kind == BlockKind::kNone) return reading;
  if (config.IsOn("selective_checkpointing")) {
    ReadSelective(config, names, reading.policy);
    return reading;
  }
  // axolotl's default of a plain run.
  const bool has_default = !config.Has("gradient_checkpointing_kwargs") &&
                           !config.Has("activation_checkpointing_kwargs") &&
                           !config.Has("rl") &&
                           !config.Has("unfrozen_parameters");
  if (has_default) {
    SetReentrant(reading);
    reading.notes.emplace_back(
        "without gradient_checkpointing_kwargs axolotl sets use_reentrant: "
        "true");
  }
  return reading;
}

bool IsLikeAxolotl(const Config& config) {
  const bool is_for_accelerate = HasFsdpCheckpoints(config);
  return !config.IsPython() && !is_for_accelerate &&
         (config.Has("base_model") || config.Has("selective_checkpointing"));
}

}  // namespace

Trainer AxolotlTrainer() {
  return {.name = "axolotl",
          .version = "axolotl 0.19.0",
          .place = "the YAML configuration",
          .language = {.takes_names = true,
                       .never_saved_with_lora = {"aten.mm.*", "aten.addmm.*",
                                                 "aten.bmm.*", "aten.matmul.*"},
                       .matches_parts = true},
          .format = ConfigFormat::kYaml,
          .write = WriteAxolotl,
          .read = ReadAxolotl,
          .is_like = IsLikeAxolotl};
}

}  // namespace acplan::problems
