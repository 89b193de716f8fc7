#include <fmt/format.h>

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

TrainerPolicy ReadTorchtitan(const ConfigText& text, const ConfigNames& names) {
  if (text.Value("activation_checkpoint").value_or("None") == "None") return {};
  TrainerPolicy policy = WholeBlocks();
  policy.product_period = kProductPeriod;
  policy.stops_early = false;
  if (text.Mentions("SelectiveAC") && !text.Mentions("SAVED")) {
    text.Fail("activation_checkpoint",
              "a policy whose get_save_ops returns a set SAVED of this file",
              "torchtitan's own list");
  }
  if (text.Mentions("SAVED")) policy.saved = ReadSaved(text, "SAVED", names);
  return policy;
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
          .write = WriteTorchtitan,
          .read = ReadTorchtitan};
}

}  // namespace acplan::problems
