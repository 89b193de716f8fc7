#include <fmt/format.h>

#include <algorithm>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// torchtitan: all blocks. SelectiveAC saves a set of operators, of products only every
// second one; FullAC saves nothing. Neither stops early.

namespace acplan::problems {
namespace {

constexpr int32_t kProductPeriod = 2;

std::string WriteTorchtitan(const TrainerPolicy& policy, const ConfigNames&) {
  if (policy.blocks.kind == BlockKind::kNone) {
    return "activation_checkpoint = None\n";
  }
  if (policy.saved.empty()) {
    return "from torchtitan.distributed.activation_checkpoint import FullAC\n\n"
           "activation_checkpoint = FullAC.Config()\n";
  }
  return "from dataclasses import dataclass\n\n"
         "import torch\n"
         "from torchtitan.distributed.activation_checkpoint import "
         "SelectiveAC\n\n" +
         SavedSet(policy.saved) +
         R"(

class PlannedAC(SelectiveAC):
    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set:
        return SAVED


activation_checkpoint = PlannedAC.Config(force_recompute_mm_shapes_by_fqns=[])
)";
}

// The operators that SelectiveAC saves: those that PyTorch counts as intensive, and
// torchtitan's own; operators of its extensions and collectives are left out.
std::vector<std::string> DefaultSaved(const ConfigNames& names) {
  return Matching(names,
                  {"_c10d_functional.all_to_all_single.default",
                   "_c10d_functional.reduce_scatter_tensor.default",
                   "aten._efficient_attention_forward.default",
                   "aten._flash_attention_forward.default",
                   "aten._scaled_dot_product_attention_math.default",
                   "aten._scaled_dot_product_cudnn_attention.default",
                   "aten._scaled_dot_product_efficient_attention.default",
                   "aten._scaled_dot_product_flash_attention.default",
                   "aten._scaled_dot_product_fused_attention_overrideable."
                   "default",
                   "aten._scaled_mm.default", "aten.addmm.default",
                   "aten.bmm.default", "aten.convolution.default",
                   "aten.linear.default", "aten.max.default", "aten.mm.default",
                   "aten.topk.default", "aten.upsample_bilinear2d.default"});
}

constexpr std::string_view kKey = "activation_checkpoint";

// Refuses products that are recomputed because of their shape.
void RefuseShapes(const Config& config, const std::string& path,
                  const ConfigNames& names) {
  const auto fqns =
      config.List(path).value_or(std::vector<std::string>{"moe.router.gate"});
  for (const std::string& fqn : fqns) {
    const bool has_module =
        std::ranges::any_of(names.modules, [&](const std::string& module) {
          return module.find(fqn) != std::string::npos;
        });
    if (!has_module) continue;
    config.Fail(path,
                "no module of the trace, as products that are recomputed by "
                "shape are not simulated",
                fqn);
  }
}

// The table of torchtitan up to 0.2.
TrainerPolicy ReadTable(const Config& config, const ConfigNames& names,
                        TrainerPolicy policy) {
  const std::string key(kKey);
  policy.stops_early = config.IsTrue(key + ".early_stop");
  const std::string mode = config.Text(key + ".mode").value_or("selective");
  if (mode == "none") return {};
  if (mode == "full") return policy;
  if (mode != "selective") {
    config.Fail(key + ".mode",
                "none, full or selective, as acplan.memory_budgets in Python "
                "audits a budget of torch.compile");
  }
  if (config.Text(key + ".selective_ac_option").value_or("2") != "op") {
    config.Fail(key + ".selective_ac_option",
                "op, as every n-th layer is a policy of torchtitan up to 0.2");
  }
  RefuseShapes(config, key + ".per_op_sac_force_recompute_mm_shapes_by_fqns",
               names);
  policy.saved = DefaultSaved(names);
  return policy;
}

ConfigReading ReadTorchtitan(const Config& config, const ConfigNames& names) {
  ConfigReading reading;
  NoteCompile(config, {"compile.enable"}, reading);
  TrainerPolicy policy = WholeBlocks();
  policy.product_period = kProductPeriod;
  policy.stops_early = false;
  if (!config.IsPython()) {
    reading.policy = ReadTable(config, names, policy);
    reading.notes.emplace_back(
        "a file of torchtitan up to 0.2, audited with the list of operators "
        "of 0.3");
    return reading;
  }
  const std::string key(kKey);
  if (!config.Has(key) && !config.Mentions("activation_checkpoint")) {
    reading.notes.emplace_back(
        "activation_checkpoint is not set, so it is torchtitan's default, "
        "SelectiveAC");
  } else if (!config.Has(key)) {
    return reading;
  }
  const std::string call = config.Text(key).value_or("SelectiveAC.Config");
  if (call.ends_with("FullAC.Config")) {
    reading.policy = policy;
  } else if (call.ends_with("MemoryBudgetAC.Config")) {
    config.Fail(key,
                "FullAC, SelectiveAC or None, as acplan.memory_budgets in "
                "Python audits a budget of torch.compile",
                call);
  } else if (config.Mentions("SAVED")) {
    reading.policy = policy;
    reading.policy.saved = ReadSaved(config, "SAVED", names);
  } else if (call.ends_with("SelectiveAC.Config")) {
    RefuseShapes(config, key + ".force_recompute_mm_shapes_by_fqns", names);
    reading.policy = policy;
    reading.policy.saved = DefaultSaved(names);
  } else {
    config.Fail(key,
                "FullAC, SelectiveAC, None, or a policy whose get_save_ops "
                "returns a set SAVED of this file",
                call);
  }
  return reading;
}

bool IsLikeTorchtitan(const Config& config) {
  return config.Mentions("torchtitan") || config.Has(kKey) ||
         config.Mentions(kKey);
}

}  // namespace

Trainer TorchtitanTrainer() {
  return {.name = "torchtitan",
          .version = "torchtitan 0.3.0",
          .place =
              "the function of config_registry.py that makes the "
              "Trainer.Config",
          .language = {.takes_names = true,
                       .product_period = kProductPeriod,
                       .stops_early = false},
          .format = ConfigFormat::kPython,
          .write = WriteTorchtitan,
          .read = ReadTorchtitan,
          .is_like = IsLikeTorchtitan};
}

}  // namespace acplan::problems
