#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "graph/device/device_table.h"

namespace acplan::cli {

// Returns what a size or the name of a GPU says PyTorch can have. Throws
// InputError that begins with `flag`.
struct DeviceMemoryArgument {
  int64_t bytes = 0;
  std::optional<graph::DeviceOffer> offer = {};  // of a GPU
};
DeviceMemoryArgument ParseDeviceMemory(const std::string& text,
                                       const std::string& flag);

// Returns the sum that an offer is, without its end: "h100: 79.11 GiB - 676.86 MiB
// of CUDA context".
std::string OfferSum(const graph::DeviceOffer& offer);

// Returns a line for each figure of which the table has no reading.
std::string OfferNotes(const graph::DeviceOffer& offer);

// Returns the sum in a line, "... = 78.45 GiB for PyTorch", and the notes.
std::string OfferLine(const graph::DeviceOffer& offer);

// Returns {"gpu", "capacity_bytes", "context_bytes", "available_bytes"}.
nlohmann::ordered_json OfferJson(const graph::DeviceOffer& offer);

}  // namespace acplan::cli
