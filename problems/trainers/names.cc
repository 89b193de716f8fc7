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

std::vector<std::string> ReadSaved(const ConfigText& text, std::string_view key,
                                   const ConfigNames& names) {
  std::vector<std::string> saved;
  for (std::string name : text.List(key).value_or(std::vector<std::string>())) {
    if (name.starts_with(kTorchOps)) name = name.substr(kTorchOps.size());
    if (std::ranges::find(names.operators, name) == names.operators.end()) {
      FailUnknown(text, key, name, names.operators);
    }
    saved.push_back(std::move(name));
  }
  std::ranges::sort(saved);
  return saved;
}

void FailUnknown(const ConfigText& text, std::string_view key,
                 const std::string& name,
                 const std::vector<std::string>& known_names) {
  const std::vector<std::string> near =
      graph::NearestNames(name, known_names, 1);
  text.Fail(
      key, "a name that the trace has there",
      graph::Quoted(name) + (near.empty() ? "" : "; nearest: " + near.front()));
}

TrainerPolicy WholeBlocks() { return {.blocks = {.kind = BlockKind::kAll}}; }

BlockChoice ReadClasses(const ConfigText& text, std::string_view key,
                        const ConfigNames& names) {
  BlockChoice choice{
      .kind = BlockKind::kClasses,
      .classes = text.List(key).value_or(std::vector<std::string>())};
  for (const std::string& name : choice.classes) {
    if (std::ranges::find(names.classes, name) == names.classes.end()) {
      FailUnknown(text, key, name, names.classes);
    }
  }
  std::ranges::sort(choice.classes);
  if (choice.classes.empty()) choice.kind = BlockKind::kNone;
  return choice;
}

}  // namespace acplan::problems
