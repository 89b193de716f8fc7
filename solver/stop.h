#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>

namespace acplan::solver {

// Long work ends from the inside when its time is up or a signal has arrived. A StopScope
// sets the time and the signal. A loop whose turns may take some milliseconds calls
// StopIfDue, which throws Stopped. The function that made the scope catches Stopped and
// answers with the results so far.

// The exception of StopIfDue. It is not a std::exception, because it is not an error.
struct Stopped {};

class StopScope {
 public:
  // Begins a scope of this thread, inside of the scopes that are there. It is due after
  // so many seconds, or once a signal handler sets `interrupted` (may be null).
  StopScope(double seconds, const std::atomic<bool>* interrupted);
  // Begins a scope that is due after so many calls of StopIfDue, for tests.
  explicit StopScope(int64_t most_looks);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  // Returns whether this scope is due, whatever the scopes around it.
  bool IsDue() const;
  // Returns the number of calls of StopIfDue in this scope.
  int64_t looks() const { return looks_; }

 private:
  friend void StopIfDue();

  const StopScope* outer_;
  const std::atomic<bool>* interrupted_;
  std::chrono::steady_clock::time_point end_;
  int64_t most_looks_ = std::numeric_limits<int64_t>::max();
  mutable int64_t looks_ = 0;
};

// A scope in which the scopes around it are not due: for short work whose result is wanted
// although time is up.
class StopsLater {
 public:
  StopsLater();
  ~StopsLater();
  StopsLater(const StopsLater&) = delete;
  StopsLater& operator=(const StopsLater&) = delete;

 private:
  const StopScope* scope_;
};

// Throws Stopped if a scope of this thread is due.
void StopIfDue();

}  // namespace acplan::solver
