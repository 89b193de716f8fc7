#include "cli/report/profile_data.h"

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace acplan::cli {

using graph::MemorySnapshot;
using nlohmann::ordered_json;

namespace {

// A moment of the step. Its phase is numbered as in step_data.cc: 0 forward, 1
// backward, 3 the optimizer step.
struct Moment {
  std::string module;
  int phase = 0;
  MemorySnapshot bytes = {};
};

std::vector<Moment> MomentsOf(const graph::Profile& profile) {
  std::map<std::string, const graph::ModuleSnapshots*> snapshots;
  for (const graph::Module& module : profile.modules) {
    if (module.snap) snapshots[module.fqn] = &*module.snap;
  }
  std::vector<Moment> moments;
  const auto add = [&](const std::vector<std::string>& order, int phase) {
    for (const std::string& fqn : order) {
      const auto snapshot = snapshots.find(fqn);
      if (snapshot == snapshots.end()) continue;
      const std::optional<MemorySnapshot>& bytes =
          phase == 0 ? snapshot->second->peak_fw : snapshot->second->peak_bw;
      if (bytes) moments.push_back({fqn, phase, *bytes});
    }
  };
  add(profile.order.fw_post, 0);  // a module follows the modules inside it
  add(profile.order.bw_pre, 1);
  if (!moments.empty() && profile.measured.opt_step_peak_categories) {
    moments.push_back(
        {"optimizer step", 3, *profile.measured.opt_step_peak_categories});
  }
  return moments;
}

// Returns the bytes in the order of KindNames: parameters, buffers, optimizer,
// gradients, inputs, activations, recomputed, temporaries.
std::vector<int64_t> KindsOf(const MemorySnapshot& bytes, int64_t ranks) {
  const auto shard = [&](graph::MemoryCategory category) {
    return (bytes[category] + ranks - 1) / ranks;
  };
  return {shard(graph::kParam),
          bytes[graph::kBuffer],
          shard(graph::kOpt),
          shard(graph::kGrad),
          bytes[graph::kOther],
          bytes[graph::kAct],
          0,
          bytes[graph::kTemp]};
}

}  // namespace

ordered_json ProfileRunJson(const std::string& name,
                            const graph::Profile& profile,
                            const problems::MemoryOptions& memory) {
  ordered_json json = {{"name", name}};
  const std::vector<Moment> moments = MomentsOf(profile);
  if (moments.empty()) return json;
  ordered_json columns;
  int64_t peak = -1;
  for (size_t k = 0; k < moments.size(); ++k) {
    const std::vector<int64_t> kinds =
        KindsOf(moments[k].bytes, memory.world_size);
    int64_t total = 0;
    for (const int64_t bytes : kinds) total += bytes;
    if (total > peak) {
      peak = total;
      json["peak_sample"] = k;
      json["peak_by_kind"] = kinds;
    }
    columns["begin_step"].push_back(k);
    columns["step"].push_back(k);
    columns["module"].push_back(k);
    columns["modules"].push_back(moments[k].module);
    columns["phase"].push_back(moments[k].phase);
    columns["bytes"].push_back(kinds);
  }
  json["steps"] = moments.size();
  json["peak_bytes"] = peak;
  json["samples"] = std::move(columns);
  return json;
}

}  // namespace acplan::cli
