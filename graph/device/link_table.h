#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "graph/device/device_table.h"

namespace acplan::graph {

// The link between a GPU and the host's memory, by its source.
struct HostLink {
  std::string name;  // "pcie4"
  std::vector<std::string>
      gpus;  // that have it, as the table of devices names them
  // The bytes a second of one GPU's copies while no other GPU copies.
  double to_host = 0;
  double to_device = 0;
  std::string source;
};

// All links (data/devices/links.csv, described in docs/device_memory.md).
struct LinkTable {
  std::vector<HostLink> links;
};

// Parses the table. Throws InputError that names file, line and column for a row without name
// or source, for rates that are no positive numbers, and for a name or a GPU of two rows.
LinkTable ParseLinkTable(std::string_view text, std::string_view file);
LinkTable ReadLinkTable(const std::filesystem::path& path);

// Returns the link of this name, or of the GPU of this name, as FindOffer finds it. Throws
// InputError that begins with `what` and has the nearest name if there is none.
const HostLink& LinkNamed(const LinkTable& table, const DeviceTable& devices,
                          std::string_view name, std::string_view what);

// Returns the link of a device as a trace or its driver names it ("a100", "NVIDIA H100 80GB
// HBM3"): of the GPU with the longest name all of whose parts are in that one. Throws
// InputError that begins with `what` if there is none.
const HostLink& LinkOfDevice(const LinkTable& table, std::string_view device,
                             std::string_view what);

}  // namespace acplan::graph
