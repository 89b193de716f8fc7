#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "costmodel/calculon/hardware/memory.h"
#include "costmodel/calculon/hardware/network.h"
#include "costmodel/calculon/hardware/processor.h"

namespace acplan::costmodel {

// The machine: equal processors, each with two tiers of memory, and the tiers of the
// network between them.
struct System {
  Processor matrix;
  Processor vector;
  Memory mem1;
  Memory mem2;               // holds offloaded state; none if its capacity is 0
  bool is_roofline = false;  // computing and memory traffic overlap
  std::vector<Network> networks;

  double ProcessingTime(double flops_time, double mem_time) const {
    return is_roofline ? std::max(flops_time, mem_time) : flops_time + mem_time;
  }
};

// The keys of a system's file; others are ignored.
inline constexpr std::array<std::string_view, 6> kSystemKeys = {
    "matrix", "vector", "mem1", "mem2", "processing_mode", "networks"};

// Reads docs/file_formats.md, "System". Throws InputError, "FILE: path: ...".
System ReadSystem(const std::filesystem::path& path);
// Parses a system from the text of a file.
System ParseSystem(std::string_view text, std::string_view file);

}  // namespace acplan::costmodel
