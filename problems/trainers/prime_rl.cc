#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "graph/base/message_text.h"
#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// prime-rl: every n-th layer; in the mode "selective" it saves operators by their qualified
// names or namespaces, and aten::topk in any case. Its checkpoints do not keep the random
// state.

namespace acplan::problems {
namespace {

constexpr std::string_view kTopk = "aten.topk.default";

std::string WritePrimeRl(const TrainerPolicy& policy, const ConfigNames&) {
  if (policy.blocks.kind == BlockKind::kNone) {
    return "[model]\n# no table [model.ac]: nothing is recomputed\n";
  }
  std::string text = "[model.ac]\n";
  text += fmt::format("mode = \"{}\"\n",
                      policy.saved.empty() ? "full" : "selective");
  const int32_t period =
      policy.blocks.kind == BlockKind::kEvery ? policy.blocks.period : 1;
  text += fmt::format("freq = {}\n", period);
  if (policy.saved.empty()) return text;
  text += "targets = [\n";
  for (const std::string& name : policy.saved) {
    if (name != kTopk)
      text += fmt::format("    \"{}\",\n", QualifiedName(name));
  }
  return text + "]\n";
}

// The defaults of `targets`.
std::vector<std::string> DefaultTargets() {
  return {"_c10d_functional",
          "flash_attn",
          "flash_attn_3",
          "prime_rl_collectives",
          "prime_rl_ring",
          "aten::_efficient_attention_forward",
          "aten::_flash_attention_forward",
          "aten::_scaled_dot_product_attention_math",
          "aten::_scaled_dot_product_cudnn_attention",
          "aten::_scaled_dot_product_efficient_attention",
          "aten::_scaled_dot_product_flash_attention",
          "aten::_scaled_dot_product_flash_attention_for_cpu",
          "aten::_scaled_dot_product_fused_attention_overrideable",
          "aten::_scaled_grouped_mm",
          "aten::_scaled_mm",
          "aten::_scaled_mm_v2",
          "aten::_grouped_mm",
          "aten::addmm",
          "aten::bmm",
          "aten::convolution",
          "aten::linear",
          "aten::mm",
          "prime_rl::fp8_blockwise_mm",
          "prime_rl::grouped_fp8_gemm",
          "prime_rl::sparse_mla"};
}

// Targets of other versions, which are parts of layers and no operators.
bool IsLayerPart(const std::string& target) {
  constexpr std::array<std::string_view, 6> kParts = {
      "norm",        "attn_proj",      "mlp",
      "mla_up_proj", "routed_experts", "linear_attn"};
  return std::ranges::find(kParts, target) != kParts.end();
}

// Returns whether a target is an operator's name, or the namespace of its name.
bool Means(const std::string& target, const std::string& qualified_name) {
  return qualified_name == target || qualified_name.starts_with(target + "::");
}

// Adds a note for each namespace without an operator in the trace.
void NoteUnmet(const Config& config, const std::string& path,
               const ConfigNames& names, ConfigReading& reading) {
  for (const std::string& target :
       config.List(path).value_or(std::vector<std::string>())) {
    const bool is_met =
        std::ranges::any_of(names.operators, [&](const std::string& name) {
          return Means(target, QualifiedName(name));
        });
    if (is_met) continue;
    reading.notes.push_back(
        fmt::format("{}: the trace has no operator of {}, which is left out",
                    graph::OneLine(path), graph::Quoted(target)));
  }
}

std::vector<std::string> ReadTargets(const Config& config,
                                     const std::string& path,
                                     const ConfigNames& names) {
  const auto given_targets = config.List(path);
  std::set<std::string> saved;
  for (const std::string& target : given_targets.value_or(DefaultTargets())) {
    if (IsLayerPart(target)) {
      config.Fail(path,
                  "operators, as parts of layers are the targets of another "
                  "version than the one that acplan reads",
                  target);
    }
    bool is_known = target.find("::") == std::string::npos;
    std::vector<std::string> qualified_names;
    for (const std::string& name : names.operators) {
      qualified_names.push_back(QualifiedName(name));
      const std::string& qualified_name = qualified_names.back();
      if (!Means(target, qualified_name)) continue;
      saved.insert(name);
      is_known = true;
    }
    if (!is_known && given_targets) {
      FailUnknown(config, path, target, qualified_names);
    }
  }
  if (std::ranges::find(names.operators, kTopk) != names.operators.end()) {
    saved.emplace(kTopk);
  }
  return {saved.begin(), saved.end()};
}

ConfigReading ReadPrimeRl(const Config& config, const ConfigNames& names) {
  // The trainer's own file, or the one of a run with all its parts.
  const std::string model =
      config.Has("trainer.model") ? "trainer.model" : "model";
  const std::string path = model + ".ac";
  ConfigReading reading;
  NoteCompile(config, {model + ".compile"}, reading);
  if (config.IsOn(model + ".ac_offloading")) {
    reading.notes.push_back(
        model +
        ".ac_offloading: what is kept goes to the host, which is not "
        "simulated: the peak is lower than below");
  }
  if (config.IsOn(path)) config.RequireTable(path);
  if (!config.IsOn(path)) {
    if (!config.Has(path)) {
      reading.notes.push_back("no table " + path +
                              ": nothing is recomputed; other versions of "
                              "prime-rl then checkpoint all blocks");
    }
    return reading;
  }
  reading.policy.blocks = {.kind = BlockKind::kEvery,
                           .period = config.Whole(path + ".freq", 1, 1)};
  const std::string mode = config.Text(path + ".mode").value_or("full");
  if (mode == "selective") {
    reading.policy.saved = ReadTargets(config, path + ".targets", names);
    NoteUnmet(config, path + ".targets", names, reading);
  } else if (mode != "full") {
    config.Fail(path + ".mode", "\"full\" or \"selective\"");
  }
  return reading;
}

bool IsLikePrimeRl(const Config& config) {
  return !config.IsPython() &&
         (config.Has("model.ac") || config.Has("trainer.model") ||
          config.Has("orchestrator"));
}

}  // namespace

Trainer PrimeRlTrainer() {
  return {.name = "prime-rl",
          .version = "prime-rl at commit 0394e864",
          .place = "the trainer's TOML file",
          .language = {.blocks = {BlockKind::kEvery},
                       .takes_names = true,
                       .always_saved = {std::string(kTopk)},
                       .replays_random = false},
          .format = ConfigFormat::kToml,
          .write = WritePrimeRl,
          .read = ReadPrimeRl,
          .is_like = IsLikePrimeRl};
}

}  // namespace acplan::problems
