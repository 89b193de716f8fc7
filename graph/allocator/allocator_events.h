#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "graph/allocator/segment_layout.h"

namespace acplan::graph {

// One request to an allocator.
struct AllocatorEvent {
  enum class Kind : uint8_t {
    kAllocate,      // bytes, stream
    kFree,          // block
    kRecordStream,  // block, stream: Tensor.record_stream
    kEmptyCache,    // torch.cuda.empty_cache
    kBeginCapture,  // pool: of a CUDA graph
    kBeginPool,     // pool: torch.cuda.use_mem_pool
    kEndPool,       // pool: the end of either
    kReleasePool,   // pool: a graph is reset, or a MemPool is deleted
  };

  Kind kind = Kind::kAllocate;
  int32_t block = -1;  // its place among the blocks of the list; -1: none
  int64_t bytes = 0;   // that are allocated: 0 asks for nothing
  int64_t stream = 0;
  int64_t pool = 0;
};

// The requests of a run, in order.
struct AllocatorEvents {
  std::vector<AllocatorEvent> events;
  std::vector<int64_t> lines;      // of the file, from 1 on, by event
  std::vector<int64_t> block_ids;  // as the file names blocks, by block
  // The segments that are there before the first event.
  std::vector<SegmentLayout> start = {};
};

// The most bytes of one request.
inline constexpr int64_t kLargestRequest = int64_t{1} << 50;
// The most lines of a list of events, which may come from a pipe without an end.
inline constexpr int64_t kMostEventLines = int64_t{1} << 24;

// Reads events, one a line ("a ID BYTES [STREAM]", "f ID", "s ID STREAM", "e",
// "g POOL", "p POOL", "q POOL", "d POOL": as the kinds above stand); blank lines
// and lines that begin with '#' do not count. An ID is a whole number and names
// a block from its `a` to its `f`; it may come again later.
//
// Throws InputError, naming file and line, for anything else: another letter,
// too many words, no number, an ID that is allocated twice or not at all, a pool
// that begins twice, ends without a beginning, or is released while it serves,
// more often than it began, or before it begins again, and for more than
// kMostEventLines lines.
AllocatorEvents ReadAllocatorEvents(const std::filesystem::path& path);

// Parses the same from text. Errors name `name` in place of a file.
AllocatorEvents ParseAllocatorEvents(std::string_view text,
                                     std::string_view name);

}  // namespace acplan::graph
