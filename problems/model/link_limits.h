#pragma once

#include <cstdint>

namespace acplan::problems {

// The speed of the link to the host, and the room at its other end.
struct LinkLimits {
  double bytes_per_second = 0;  // each way, above 0
  int64_t host_memory_bytes = INT64_MAX;
};

}  // namespace acplan::problems
