#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// prime-rl: every n-th layer; in the mode "selective" it saves operators by their qualified
// names or namespaces, and aten::topk in any case.

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

std::vector<std::string> ReadTargets(const ConfigText& text,
                                     const ConfigNames& names) {
  const auto given_targets = text.List("targets");
  std::set<std::string> saved;
  for (const std::string& target : given_targets.value_or(DefaultTargets())) {
    bool is_known = target.find("::") == std::string::npos;
    std::vector<std::string> qualified_names;
    for (const std::string& name : names.operators) {
      qualified_names.push_back(QualifiedName(name));
      const std::string& qualified_name = qualified_names.back();
      const bool is_meant =
          qualified_name == target || qualified_name.starts_with(target + "::");
      if (!is_meant) continue;
      saved.insert(name);
      is_known = true;
    }
    if (!is_known && given_targets) {
      FailUnknown(text, "targets", target, qualified_names);
    }
  }
  if (std::ranges::find(names.operators, kTopk) != names.operators.end()) {
    saved.emplace(kTopk);
  }
  return {saved.begin(), saved.end()};
}

TrainerPolicy ReadPrimeRl(const ConfigText& text, const ConfigNames& names) {
  if (!text.Mentions("model.ac") && !text.Mentions("ac")) return {};
  TrainerPolicy policy{.blocks = {.kind = BlockKind::kEvery,
                                  .period = text.Whole("freq", 1, 1)}};
  const std::string mode = text.Value("mode").value_or("full");
  if (mode == "selective") {
    policy.saved = ReadTargets(text, names);
  } else if (mode != "full") {
    text.Fail("mode", "\"full\" or \"selective\"", "\"" + mode + "\"");
  }
  return policy;
}

}  // namespace

Trainer PrimeRlTrainer() {
  return {.name = "prime-rl",
          .version = "prime-rl at commit 0394e864",
          .place = "the trainer's TOML file",
          .language = {.blocks = {BlockKind::kEvery},
                       .takes_names = true,
                       .always_saved = {std::string(kTopk)}},
          .write = WritePrimeRl,
          .read = ReadPrimeRl};
}

}  // namespace acplan::problems
