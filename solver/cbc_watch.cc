#include "solver/cbc_watch.h"

namespace acplan::solver {
namespace {

constexpr double kReportEverySeconds = 0.1;

}  // namespace

void CbcWatch::Report(bool now) {
  if (!limits().on_progress || error_) return;
  const double seconds = clock_.Seconds();
  if (!now && seconds - last_report_ < kReportEverySeconds) return;
  last_report_ = seconds;
  try {
    limits().on_progress(SearchProgress{.best = best_,
                                        .bound = std::min(bound_, best_),
                                        .nodes = nodes_,
                                        .seconds = seconds});
  } catch (...) {
    error_ = std::current_exception();
    stop_ = StoppedBy::kInterrupt;
  }
}

}  // namespace acplan::solver
