#pragma once

#include <cstdint>
#include <string>

namespace acplan::graph {

// The model and the device that a profile or a trace was taken from. A field that the file
// does not give is empty or 0.

struct ModelInfo {
  std::string name;
  std::string root_class;
  int64_t batch = 0;
  int64_t seq = 0;
  std::string dtype;
  std::string optimizer;

  bool operator==(const ModelInfo&) const = default;
};

struct DeviceInfo {
  std::string name;
  double peak_flops = 0;  // FLOP/s
  double bandwidth = 0;   // byte/s

  bool operator==(const DeviceInfo&) const = default;
};

}  // namespace acplan::graph
