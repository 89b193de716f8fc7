#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// The memory of a GPU by one source: an out-of-memory message of PyTorch ("GPU 0 has a
// total capacity of 23.64 GiB ..."), a device's properties, a data sheet.
struct DeviceSource {
  std::string gpu;                   // its name, in small letters
  std::vector<std::string> aliases;  // other names, in small letters
  std::string architecture;          // "sm90", "gfx942"
  double nominal_gib = 0;            // of the data sheet
  // The total of torch.cuda.mem_get_info.
  std::optional<double> capacity_gib = {};
  // The bytes of a process without communicators beside what PyTorch has reserved.
  std::optional<double> context_gib = {};
  std::string software;
  std::string source;
};

// The sources of all GPUs (data/devices/memory.csv, described in docs/device_memory.md).
struct DeviceTable {
  std::vector<DeviceSource> sources;
};

// The memory of a GPU without a capacity in the table: so much of its data sheet's. It is
// what HBM of the table has at least.
inline constexpr double kShareOfNominal = .985;

// The context where the table has none of the GPU's architecture: the largest of all.
inline constexpr double kDefaultContextGib = .661;

// The memory that a GPU offers PyTorch.
struct DeviceOffer {
  std::string gpu;
  std::string architecture;    // "" if the GPU is in no table
  int64_t capacity_bytes = 0;  // the least of its sources
  int64_t context_bytes = 0;   // the most of its architecture's sources
  bool has_capacity = false;   // else kShareOfNominal of the data sheet's
  bool has_context = false;    // else kDefaultContextGib

  // Returns what PyTorch and communicators can have.
  int64_t AvailableBytes() const { return capacity_bytes - context_bytes; }

  bool operator==(const DeviceOffer&) const = default;
};

// Parses the table. Throws InputError that names file, line and column for a row without
// name, architecture, data sheet's memory or source; for memory that is no positive
// number, a capacity above the data sheet's or a context above the capacity; and for rows
// of a GPU that contradict each other.
DeviceTable ParseDeviceTable(std::string_view text, std::string_view file);
DeviceTable ReadDeviceTable(const std::filesystem::path& path);

// Returns the GPU of this name, in small or capital letters; spaces, '_' and '-' are left
// out ("RTX 4090", "rtx4090"). Nothing if there is none.
std::optional<DeviceOffer> FindOffer(const DeviceTable& table,
                                     std::string_view name);

// Returns the same. Throws InputError that begins with `what` and has the nearest name if
// there is none.
DeviceOffer OfferOf(const DeviceTable& table, std::string_view name,
                    std::string_view what);

// Returns what a GPU offers that reports this capacity itself.
DeviceOffer OfferOfUnlisted(std::string_view gpu, int64_t capacity_bytes);

// Returns the names of all GPUs, without aliases.
std::vector<std::string> DeviceNames(const DeviceTable& table);

}  // namespace acplan::graph
