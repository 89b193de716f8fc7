#include "solver/stop.h"

#include <utility>

namespace acplan::solver {
namespace {

using Clock = std::chrono::steady_clock;

const StopScope*& Innermost() {
  thread_local const StopScope* scope = nullptr;
  return scope;
}

Clock::time_point After(double seconds) {
  // Longer than any search; more would not fit into the clock.
  constexpr double kForever = 1e9;
  const std::chrono::duration<double> duration(seconds < kForever ? seconds
                                                                  : kForever);
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(duration);
}

}  // namespace

StopScope::StopScope(double seconds, const std::atomic<bool>* interrupted)
    : outer_(std::exchange(Innermost(), this)),
      interrupted_(interrupted),
      end_(After(seconds)) {}

StopScope::StopScope(int64_t most_looks)
    : outer_(std::exchange(Innermost(), this)),
      interrupted_(nullptr),
      end_(Clock::time_point::max()),
      most_looks_(most_looks) {}

StopScope::~StopScope() { Innermost() = outer_; }

bool StopScope::IsDue() const {
  return (interrupted_ != nullptr &&
          interrupted_->load(std::memory_order_relaxed)) ||
         looks_ > most_looks_ || Clock::now() >= end_;
}

StopsLater::StopsLater() : scope_(std::exchange(Innermost(), nullptr)) {}

StopsLater::~StopsLater() { Innermost() = scope_; }

void StopIfDue() {
  for (const StopScope* scope = Innermost(); scope != nullptr;
       scope = scope->outer_) {
    ++scope->looks_;
    if (scope->IsDue()) throw Stopped();
  }
}

}  // namespace acplan::solver
