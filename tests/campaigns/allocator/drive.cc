// Runs PyTorch's own allocator on the events of standard input:
//
//   drive SETTINGS DEVICE [FRACTION] < EVENTS
//
// and prints a line for each event: the number of its block's segment and the
// bytes before it there ("-" without a block), the allocated and the reserved
// bytes, the retries and failures so far. Events are those of acplan simulate
// --events; besides, `r` begins a recording of PyTorch's memory history, and `w`
// prints the snapshot in place of that line, `k` the most allocated and reserved
// bytes.

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <unordered_map>

#include "real_allocator.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  RealStart(argv[1], std::atoll(argv[2]), argc > 3 ? std::atof(argv[3]) : 1);
  std::unordered_map<std::string, void*> blocks;
  std::unordered_map<std::string, bool> is_capture;  // by private pool
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string kind;
    std::string id;
    int64_t number = 0;
    int64_t stream = 0;
    if (!(words >> kind) || kind.starts_with("#")) continue;
    words >> id;
    std::string place = "-";
    if (kind == "a") {
      words >> number >> stream;
      std::string error;
      void* block = RealAllocate(number, stream, error);
      if (!error.empty()) place = "error " + error.substr(0, 200);
      if (block != nullptr) {
        blocks[id] = block;
        int64_t segment = -1;
        int64_t offset = -1;
        StandInFind(block, &segment, &offset);
        place = std::to_string(segment) + "+" + std::to_string(offset);
      }
    } else if (kind == "f") {
      const auto block = blocks.find(id);
      if (block != blocks.end()) {
        RealFree(block->second);
        blocks.erase(block);
      }
    } else if (kind == "s") {
      words >> stream;
      if (blocks.contains(id)) RealRecordStream(blocks[id], stream);
    } else if (kind == "e") {
      RealEmptyCache();
    } else if (kind == "g" || kind == "p") {
      is_capture[id] = kind == "g";
      RealBeginPool(std::stoll(id), is_capture[id]);
    } else if (kind == "q") {
      RealEndPool(std::stoll(id), is_capture[id]);
    } else if (kind == "d") {
      RealReleasePool(std::stoll(id));
    } else if (kind == "r") {
      RealRecord();
    } else if (kind == "w") {
      std::printf("%s\n", RealSnapshot(argv[1]).c_str());
      continue;
    } else if (kind == "k") {
      const RealCounts counts = RealCount();
      std::printf("%lld %lld\n",
                  static_cast<long long>(counts.peak_allocated_bytes),
                  static_cast<long long>(counts.peak_reserved_bytes));
      continue;
    }
    const RealCounts counts = RealCount();
    std::printf("%s %lld %lld %lld %lld\n", place.c_str(),
                static_cast<long long>(counts.allocated_bytes),
                static_cast<long long>(counts.reserved_bytes),
                static_cast<long long>(counts.retries),
                static_cast<long long>(counts.failures));
  }
}
