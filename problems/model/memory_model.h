#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"

namespace acplan::problems {

// A memory model says where the bytes of a training step come from. It turns a profile
// into records: moments of the step, the bytes in use then without
// checkpointing, and which units have discarded by then.
enum class MemoryModel {
  // The records of PyTorch's sac_milp, literally: parameters, gradients so far,
  // total activations and activation gradients when the backward pass reaches a
  // module. Optimizer state, buffers and inputs are not in it.
  kTorch,
  // MemTracker's simultaneous totals at the peak of each module's forward and
  // backward (`snap` in the profile), and the optimizer step. Exact without
  // checkpointing. It cannot see what lives only while a unit recomputes, nor
  // arguments that checkpoint frames hold where the profile lacks
  // `held_per_module`.
  kSnapshot,
  // The simulated step of a trace (graph/trace/simulation.h), operator by operator: no
  // sum of records. Where only records are asked for, those of kSnapshot, which
  // its profile has.
  kTrace,
};

std::string_view ToString(MemoryModel model);  // "torch" ...
std::optional<MemoryModel> ParseMemoryModel(std::string_view name);

// Says what the model cannot see, as a sentence to print with every plan made with
// it.
std::string_view Caveat(MemoryModel model);

struct MemoryOptions {
  MemoryModel model = MemoryModel::kTorch;
  // FSDP ranks: divides parameters, gradients and optimizer state, nothing
  // else.
  int64_t world_size = 1;
  // kSnapshot: leave out optimizer state, buffers, inputs and the optimizer
  // step, as kTorch does.
  bool without_states = false;
  // kTrace: with world_size > 1, what is sharded is whole while these units run
  // (trace_memory.h).
  std::vector<std::string> fsdp_units = {};

  bool operator==(const MemoryOptions&) const = default;
};

enum class Phase { kForward, kBackward, kOptimizerStep };
std::string_view ToString(
    Phase phase);  // "forward", "backward", "optimizer step"

struct MemoryRecord {
  int node = -1;  // in the ModuleTree; -1 for the optimizer step
  Phase phase = Phase::kBackward;
  // Bytes in use without checkpointing. Not whole where the world size does not
  // divide what it shards.
  double base_bytes = 0;
};

// kSnapshot where every called module has snapshots, else kTorch.
MemoryModel DefaultMemoryModel(const graph::Profile& profile);

// The records of the called modules, one a module (the larger of its forward
// and backward peak) in forward post-order, and under kSnapshot with states one
// for the optimizer step where the profile has it. At the record of module i
// the units with an earlier forward post-order position than i have discarded.
// Throws InputError where the profile lacks what the model needs.
std::vector<MemoryRecord> MemoryRecords(const graph::Profile& profile,
                                        const graph::ModuleTree& tree,
                                        const MemoryOptions& options);

}  // namespace acplan::problems
