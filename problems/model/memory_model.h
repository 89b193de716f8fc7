#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"

namespace acplan::problems {

// A memory model defines the bytes of a training step. It turns a profile into
// records: moments of the step, the bytes in use then without checkpointing,
// and the units that have discarded by then.
enum class MemoryModel {
  // The records of PyTorch's sac_milp, literally: parameters, gradients so far,
  // total activations and activation gradients when the backward pass reaches a
  // module. They leave out optimizer state, buffers and inputs.
  kTorch,
  // MemTracker's simultaneous totals at the peak of each module's forward and
  // backward (`snap` in the profile), and the optimizer step. Exact without
  // checkpointing. This model cannot see memory that lives only while a unit
  // recomputes, nor the arguments that checkpoint frames hold if the profile
  // lacks `held_per_module`.
  kSnapshot,
  // The simulated step of a trace (graph/trace/simulation.h), operator by
  // operator, which is no sum of records. Functions that only need records use
  // those of kSnapshot, which the trace's profile has.
  kTrace,
};

std::string_view ToString(MemoryModel model);  // "torch" ...
std::optional<MemoryModel> ParseMemoryModel(std::string_view name);

// Returns a sentence on what the model cannot see. It is printed with every
// plan made with the model.
std::string_view Caveat(MemoryModel model);

struct MemoryOptions {
  MemoryModel model = MemoryModel::kTorch;
  // The number of FSDP ranks, which divides only parameters, gradients and
  // optimizer state.
  int64_t world_size = 1;
  // kSnapshot: leave out optimizer state, buffers, inputs and the optimizer
  // step, as kTorch does.
  bool without_states = false;
  // kTrace: with world_size > 1, sharded parameters are whole while these units
  // run (trace_memory.h).
  std::vector<std::string> fsdp_units = {};

  bool operator==(const MemoryOptions&) const = default;
};

enum class Phase { kForward, kBackward, kOptimizerStep };
std::string_view ToString(
    Phase phase);  // "forward", "backward", "optimizer step"

struct MemoryRecord {
  int node = -1;  // in the ModuleTree; -1 for the optimizer step
  Phase phase = Phase::kBackward;
  // The bytes in use without checkpointing. This may be no whole number if the
  // world size does not divide the bytes that it shards.
  double base_bytes = 0;
};

// Returns kSnapshot if every called module has snapshots, else kTorch.
MemoryModel DefaultMemoryModel(const graph::Profile& profile);

// Returns the records of the called modules, one for each module (the larger of
// its forward and backward peak), in forward post-order. Under kSnapshot with
// states, adds one for the optimizer step if the profile has it. At the record
// of module i, the units that precede i in forward post-order have discarded
// their bytes. Throws InputError if the profile lacks what the model needs.
std::vector<MemoryRecord> MemoryRecords(const graph::Profile& profile,
                                        const graph::ModuleTree& tree,
                                        const MemoryOptions& options);

}  // namespace acplan::problems
