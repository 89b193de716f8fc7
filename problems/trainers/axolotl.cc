#include <fmt/format.h>

#include <algorithm>
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
void AddMeant(const ConfigText& text, const std::string& entry,
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
    FailUnknown(text, "save", entry, qualified_names);
  }
  saved.insert(operators.begin(), operators.end());
}

TrainerPolicy ReadAxolotl(const ConfigText& text, const ConfigNames& names) {
  if (!text.IsTrue("gradient_checkpointing")) return {};
  TrainerPolicy policy = WholeBlocks();
  if (!text.Mentions("selective_checkpointing") ||
      text.Value("selective_checkpointing") == "false") {
    return policy;
  }
  if (text.IsTrue("offload")) {
    text.Fail("offload", "false, as acplan does not simulate it here", "true");
  }
  std::set<std::string> saved;
  for (const std::string& entry : text.List("save").value_or(
           std::vector<std::string>{std::string(kAttention)})) {
    AddMeant(text, entry, names, saved);
  }
  policy.saved.assign(saved.begin(), saved.end());
  return policy;
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
          .write = WriteAxolotl,
          .read = ReadAxolotl};
}

}  // namespace acplan::problems
