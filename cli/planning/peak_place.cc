#include "cli/planning/peak_place.h"

#include "cli/planning/peak_text.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/rank_peak.h"

namespace acplan::cli {

std::string PeakPlace(const graph::Trace* trace, const problems::Plan& plan,
                      const problems::MemoryOptions& memory,
                      const std::string& module) {
  if (!trace || plan.offload || memory.model != problems::MemoryModel::kTrace) {
    return module;
  }
  const std::string text = PlaceText(
      *trace,
      problems::AccountForPeakOfRank(
          *trace, problems::CheckpointedModules(*trace, plan.modules), memory));
  return text.empty() ? module : text;
}

}  // namespace acplan::cli
