#include <fmt/format.h>

#include <algorithm>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// PyTorch itself: checkpoint_wrapper around blocks, and a CheckpointPolicy by names.

namespace acplan::problems {
namespace {

constexpr std::string_view kImports =
    R"(import functools

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

)";

constexpr std::string_view kCode = R"(

def policy(context, operator, *args, **kwargs):
    is_saved = operator in SAVED
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_blocks(model):
    options = {}
    if SAVED:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, policy)
    for name in BLOCKS:
        model.set_submodule(name, checkpoint_wrapper(model.get_submodule(name), **options))
)";

std::string WriteTorch(const TrainerPolicy& policy, const ConfigNames& names) {
  std::string text(kImports);
  text += "BLOCKS = [\n";
  for (size_t k = 0; k < names.blocks.size(); ++k) {
    if (HasBlock(policy.blocks, static_cast<int32_t>(k))) {
      text += fmt::format("    \"{}\",\n", names.blocks[k]);
    }
  }
  text += "]\n";
  text += policy.saved.empty() ? "SAVED = set()\n" : SavedSet(policy.saved);
  return text + std::string(kCode);
}

// Returns the choice that has exactly these blocks.
BlockChoice ChoiceOf(const Config& config,
                     const std::vector<std::string>& blocks,
                     const ConfigNames& names) {
  for (const std::string& block : blocks) {
    if (std::ranges::find(names.blocks, block) == names.blocks.end()) {
      FailUnknown(config, "BLOCKS", block, names.blocks);
    }
  }
  const auto count = static_cast<int32_t>(names.blocks.size());
  std::vector<BlockChoice> choices{{}, {.kind = BlockKind::kAll}};
  for (int32_t n = 1; n <= count; ++n) {
    choices.push_back({.kind = BlockKind::kFirst, .end = n});
    choices.push_back({.kind = BlockKind::kEvery, .period = n});
  }
  if (!blocks.empty()) {
    const auto first = std::ranges::find(names.blocks, blocks.front());
    const auto begin = static_cast<int32_t>(first - names.blocks.begin());
    choices.push_back({.kind = BlockKind::kRange,
                       .begin = begin,
                       .end = begin + static_cast<int32_t>(blocks.size())});
  }
  for (const BlockChoice& choice : choices) {
    std::vector<std::string> chosen_blocks;
    for (int32_t k = 0; k < count; ++k) {
      if (HasBlock(choice, k)) {
        chosen_blocks.push_back(names.blocks[static_cast<size_t>(k)]);
      }
    }
    if (chosen_blocks == blocks) return choice;
  }
  config.Fail("BLOCKS", "all blocks, neighbours or every n-th",
              fmt::format("{} others", blocks.size()));
}

ConfigReading ReadTorch(const Config& config, const ConfigNames& names) {
  constexpr std::string_view kBudget = "activation_memory_budget";
  if (config.Has(kBudget)) {
    config.Fail(kBudget,
                "no budget of torch.compile, which acplan.memory_budgets in "
                "Python audits");
  }
  if (!config.Mentions("BLOCKS")) {
    config.Fail("BLOCKS", "the list of blocks, as acplan emit writes it",
                "nothing");
  }
  TrainerPolicy policy;
  policy.blocks = ChoiceOf(
      config, config.List("BLOCKS").value_or(std::vector<std::string>()),
      names);
  if (config.Has("SAVED")) policy.saved = ReadSaved(config, "SAVED", names);
  return {.policy = policy};
}

bool IsLikeTorch(const Config& config) {
  return (config.Mentions("checkpoint_blocks") && config.Mentions("BLOCKS")) ||
         config.Has("activation_memory_budget");
}

}  // namespace

Trainer TorchTrainer() {
  return {.name = "torch",
          .version = "torch 2.13.0",
          .place =
              "a module; call checkpoint_blocks(model) before the optimizer "
              "is made",
          .language = {.blocks = {BlockKind::kAll, BlockKind::kFirst,
                                  BlockKind::kEvery, BlockKind::kRange},
                       .takes_names = true},
          .format = ConfigFormat::kPython,
          .write = WriteTorch,
          .read = ReadTorch,
          .is_like = IsLikeTorch};
}

}  // namespace acplan::problems
