#include "problems/model/memory_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/base/input_error.h"

namespace acplan::problems {

using graph::MemorySnapshot;
using graph::Module;
using graph::ModuleTree;
using graph::Profile;

namespace {

double SnapshotBytes(const MemorySnapshot& s, const MemoryOptions& options) {
  double sharded = static_cast<double>(s[graph::kParam]) +
                   static_cast<double>(s[graph::kGrad]);
  double rest = static_cast<double>(s[graph::kAct]) +
                static_cast<double>(s[graph::kTemp]);
  if (!options.without_states) {
    sharded += static_cast<double>(s[graph::kOpt]);
    rest += static_cast<double>(s[graph::kBuffer]) +
            static_cast<double>(s[graph::kOther]);
  }
  return sharded / static_cast<double>(options.world_size) + rest;
}

MemoryRecord TorchRecord(const Module& module, int node, double parameters,
                         const MemoryOptions& options) {
  const double sharded = parameters + static_cast<double>(module.grad_total);
  return {.node = node,
          .phase = Phase::kBackward,
          .base_bytes = sharded / static_cast<double>(options.world_size) +
                        static_cast<double>(module.act_total) +
                        static_cast<double>(module.act_grad_per_module)};
}

MemoryRecord SnapshotRecord(const Module& module, int node,
                            const MemoryOptions& options) {
  if (!module.snap || !module.snap->peak_fw) {
    throw InputError(
        fmt::format("memory model snapshot: module '{}' has no `snap.peak_fw` "
                    "in the profile; use --memory-model torch",
                    module.fqn));
  }
  MemoryRecord record{
      .node = node,
      .phase = Phase::kForward,
      .base_bytes = SnapshotBytes(*module.snap->peak_fw, options)};
  if (module.snap->peak_bw) {
    const double backward = SnapshotBytes(*module.snap->peak_bw, options);
    if (backward >= record.base_bytes) {
      record.phase = Phase::kBackward;
      record.base_bytes = backward;
    }
  }
  return record;
}

}  // namespace

std::string_view ToString(MemoryModel model) {
  switch (model) {
    case MemoryModel::kTorch:
      return "torch";
    case MemoryModel::kTrace:
      return "trace";
    case MemoryModel::kSnapshot:
      break;
  }
  return "snapshot";
}

std::string_view Caveat(MemoryModel model) {
  if (model == MemoryModel::kTorch) {
    return "the torch memory model does not count optimizer state, buffers, "
           "inputs, the peaks of forward and optimizer step, or memory that "
           "lives only while a unit recomputes: it was off by -3% to +27% for "
           "measured plans";
  }
  if (model == MemoryModel::kTrace) {
    return "the trace memory model counts live tensors, exact to the byte "
           "for plans that were traced again; --reserve keeps room for unused "
           "memory of the allocator, CUDA's own memory and communication "
           "buffers";
  }
  return "the snapshot memory model does not count memory that lives only "
         "while a unit recomputes, or arguments that checkpoint frames hold: "
         "most measured plans peaked within 1% of it, some up to 8% higher; "
         "--reserve keeps a margin";
}

std::optional<MemoryModel> ParseMemoryModel(std::string_view name) {
  for (const MemoryModel model :
       {MemoryModel::kTorch, MemoryModel::kSnapshot, MemoryModel::kTrace}) {
    if (ToString(model) == name) return model;
  }
  return std::nullopt;
}

std::string_view ToString(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizerStep:
      break;
  }
  return "optimizer step";
}

MemoryModel DefaultMemoryModel(const Profile& profile) {
  const bool all = std::ranges::all_of(profile.modules, [](const Module& m) {
    return m.calls == 0 || (m.snap && m.snap->peak_fw);
  });
  return all ? MemoryModel::kSnapshot : MemoryModel::kTorch;
}

std::vector<MemoryRecord> MemoryRecords(const Profile& profile,
                                        const ModuleTree& tree,
                                        const MemoryOptions& options) {
  double parameters = 0;
  for (const int root : tree.Roots()) {
    parameters += static_cast<double>(
        profile.modules[tree.node(root).module].param_per_module);
  }
  std::vector<MemoryRecord> records;
  for (int i = 0; i < tree.size(); ++i) {
    if (tree.node(i).fw_post < 0) continue;
    const Module& module = profile.modules[tree.node(i).module];
    records.push_back(options.model == MemoryModel::kTorch
                          ? TorchRecord(module, i, parameters, options)
                          : SnapshotRecord(module, i, options));
  }
  std::ranges::sort(records, {}, [&](const MemoryRecord& r) {
    return tree.node(r.node).fw_post;
  });
  if (options.model != MemoryModel::kTorch && !options.without_states &&
      profile.measured.opt_step_peak_categories) {
    records.push_back(
        {.node = -1,
         .phase = Phase::kOptimizerStep,
         .base_bytes = SnapshotBytes(*profile.measured.opt_step_peak_categories,
                                     options)});
  }
  return records;
}

}  // namespace acplan::problems
