#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace acplan::costmodel {

enum class NetworkOperation : uint8_t {
  kPointToPoint,
  kReduceScatter,
  kAllGather,
  kAllReduce
};

inline constexpr int kNetworkOperations = 4;
inline constexpr std::array<std::string_view, kNetworkOperations>
    kNetworkOperationNames = {"p2p", "reduce_scatter", "all_gather",
                              "all_reduce"};

// The volume of an operation: on b bytes with n participants it puts b scalar (1 + offset /
// n) on the wire.
struct NetworkVolume {
  double scalar = 1;  // above 0
  double offset = 0;
};

// A tier of the network.
struct Network {
  double bandwidth = 0;   // bytes/s
  double efficiency = 1;  // in (0, 1]
  int64_t size = 0;       // the processors that it connects
  double latency = 0;     // s
  bool must_be_filled = false;
  // The share of a processor that communication takes, in [0, 1).
  double processor_usage = 0;
  std::array<NetworkVolume, kNetworkOperations> volumes;

  const NetworkVolume& Volume(NetworkOperation operation) const {
    return volumes[static_cast<size_t>(operation)];
  }

  // Returns seconds: latency + volume / (bandwidth efficiency).
  double Time(NetworkOperation operation, double bytes,
              double participants) const {
    const NetworkVolume& volume = Volume(operation);
    const double scaled = bytes * volume.scalar;
    const double chunk = 1 / participants * scaled;
    return latency +
           (scaled + chunk * volume.offset) / (bandwidth * efficiency);
  }
};

}  // namespace acplan::costmodel
