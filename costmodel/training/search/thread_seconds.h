#pragma once

#include <ctime>

namespace acplan::costmodel {

// Returns the seconds that this thread has computed.
inline double ThreadSeconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace acplan::costmodel
