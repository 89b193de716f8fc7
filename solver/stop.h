#pragma once

#include <atomic>
#include <chrono>

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
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

  // Returns whether this scope is due, whatever the scopes around it.
  bool IsDue() const;

 private:
  friend void StopIfDue();

  const StopScope* outer_;
  const std::atomic<bool>* interrupted_;
  std::chrono::steady_clock::time_point end_;
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
