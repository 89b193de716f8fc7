#include "problems/plan/baseline.h"

#include <algorithm>
#include <cmath>

#include "graph/trace/simulation.h"
#include "problems/plan/trace_memory.h"

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
                             MemoryOptions options, const graph::Trace* trace) {
  options.world_size = 1;
  PlanBaseline baseline{.peak_bytes = 0, .peak_module = "", .runtime_ms = 0};
  const StepTime step = ComputeStepTime(profile, tree);
  baseline.runtime_ms = step.forward_ms + step.backward_ms;
  if (options.model == MemoryModel::kTrace && trace) {
    const graph::Simulation use = graph::Simulate(*trace, {});
    baseline.peak_bytes = use.peak_bytes;
    baseline.peak_module = ModuleAt(*trace, use, use.peak_step);
    return baseline;
  }
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
  return baseline;
}

}  // namespace acplan::problems
