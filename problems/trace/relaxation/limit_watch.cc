#include "problems/trace/relaxation/limit_watch.h"

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

SearchLimits LimitWatch::RemainingLimits() const {
  return solver::LeftOf(limits_, Seconds(), effort_.labels);
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
