#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graph/base/input_error.h"
#include "problems/language/trainer_policy.h"
#include "problems/trainers/config.h"
#include "problems/trainers/trainer.h"

namespace acplan::problems {

// The names of a small model, and texts read with them.

inline const ConfigNames kNames{
    .blocks = {"layers.0", "layers.1", "layers.2", "layers.3"},
    .operators = {"aten._scaled_dot_product_flash_attention.default",
                  "aten.add.Tensor", "aten.addmm.default", "aten.mm.default",
                  "aten.silu.default", "aten.topk.default"},
    .classes = {"Attention", "Block", "Model"},
    .block_classes = {"Block"},
    .modules = {"", "layers.0", "layers.0.attention"},
    .parts = {"layernorm", "mlp", "moe"},
    .places = {"attention.q_proj:aten.mm.default",
               "attention:aten._scaled_dot_product_flash_attention.default",
               "mlp.gate_proj:aten.mm.default", "mlp:aten.silu.default"}};

inline ConfigReading ReadAs(std::string_view trainer, std::string_view text,
                            ConfigFormat format,
                            std::string_view function = "") {
  return FindTrainer(trainer, "--for")
      .read(Config(text, "file", format, function), kNames);
}

// Reads a text of the format that the trainer's configurations are written in.
inline TrainerPolicy Read(std::string_view trainer, std::string_view text) {
  return ReadAs(trainer, text, FindTrainer(trainer, "--for").format).policy;
}

inline std::string Complaint(std::string_view trainer, std::string_view text,
                             std::optional<ConfigFormat> format = {}) {
  try {
    ReadAs(trainer, text,
           format.value_or(FindTrainer(trainer, "--for").format));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace acplan::problems
