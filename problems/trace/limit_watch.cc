#include "problems/trace/limit_watch.h"

#include <algorithm>
#include <limits>

namespace acplan::problems {

using solver::SearchLimits;
using solver::StoppedBy;

void LimitWatch::Count(const ModuleSolution& relaxed) {
  effort_.labels += relaxed.nodes;
  effort_.rows = std::max(effort_.rows, relaxed.rows);
  effort_.columns = std::max(effort_.columns, relaxed.columns);
  effort_.is_memory_full |= relaxed.stopped_by == StoppedBy::kMemory;
}

SearchLimits LimitWatch::Left() const {
  SearchLimits left = limits_;
  left.time_limit_s = std::max(0.0, limits_.time_limit_s - Seconds());
  left.node_limit = std::max<int64_t>(0, limits_.node_limit - effort_.labels);
  return left;
}

StoppedBy LimitWatch::LimitReached(double best, double bound) const {
  if (limits_.interrupted && limits_.interrupted->load()) {
    return StoppedBy::kInterrupt;
  }
  if (Seconds() > limits_.time_limit_s) return StoppedBy::kTime;
  if (effort_.labels > limits_.node_limit) return StoppedBy::kNodes;
  if (best < std::numeric_limits<double>::infinity() && limits_.gap > 0 &&
      best - bound <= limits_.gap * best) {
    return StoppedBy::kGap;
  }
  return StoppedBy::kNothing;
}

}  // namespace acplan::problems
