#include "problems/baseline.h"

#include <algorithm>
#include <cmath>

namespace acplan::problems {

StepTime ComputeStepTime(const graph::Profile& profile,
                         const graph::ModuleTree& tree) {
  StepTime step;
  for (const int root : tree.Roots()) {
    const graph::Module& module = profile.modules[tree.node(root).module];
    step.forward_ms += module.fw_runtime_per_module;
    step.backward_ms += module.bw_runtime_per_module;
  }
  return step;
}

PlanBaseline ComputeBaseline(const graph::Profile& profile,
                             const graph::ModuleTree& tree,
                             MemoryOptions options) {
  options.world_size = 1;
  PlanBaseline baseline{.peak_bytes = 0, .peak_module = "", .runtime_ms = 0};
  for (const MemoryRecord& record : MemoryRecords(profile, tree, options)) {
    const auto bytes =
        static_cast<int64_t>(std::llround(std::max(0.0, record.base_bytes)));
    if (bytes > baseline.peak_bytes || baseline.peak_module.empty()) {
      baseline.peak_bytes = bytes;
      baseline.peak_module =
          record.node < 0 ? std::string(ToString(record.phase))
                          : profile.modules[tree.node(record.node).module].fqn;
    }
  }
  const StepTime step = ComputeStepTime(profile, tree);
  baseline.runtime_ms = step.forward_ms + step.backward_ms;
  return baseline;
}

}  // namespace acplan::problems
