#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/profile/operator_kind.h"

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

// How far predicted times are from measured ones, |predicted / measured - 1|; 0 if none was
// measured on the device.
struct TimeErrors {
  double median = 0;  // of steps
  double ninety = 0;  // of nine steps in ten, at most
  // The error that nine operators in ten of a kind are within; below 1.
  std::optional<ByKind<double>> ninety_of_kinds = {};

  bool operator==(const TimeErrors&) const = default;
};

struct DeviceInfo {
  std::string name;
  double peak_flops = 0;  // FLOP/s
  double bandwidth = 0;   // byte/s
  // If the times are predictions.
  std::optional<TimeErrors> time_errors = {};

  bool operator==(const DeviceInfo&) const = default;
};

}  // namespace acplan::graph
