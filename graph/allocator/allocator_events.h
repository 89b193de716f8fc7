#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace acplan::graph {

// One request to an allocator.
struct AllocatorEvent {
  enum class Kind : uint8_t {
    kAllocate,      // bytes, stream
    kFree,          // block
    kRecordStream,  // block, stream: Tensor.record_stream
    kEmptyCache,    // torch.cuda.empty_cache
  };

  Kind kind = Kind::kAllocate;
  int32_t block = -1;  // its place among the blocks of the list; -1: none
  int64_t bytes = 0;   // that are allocated: 0 asks for nothing
  int64_t stream = 0;
};

// The requests of a run, in order.
struct AllocatorEvents {
  std::vector<AllocatorEvent> events;
  std::vector<int64_t> lines;      // of the file, from 1 on, by event
  std::vector<int64_t> block_ids;  // as the file names blocks, by block
};

// The most bytes of one request.
inline constexpr int64_t kLargestRequest = int64_t{1} << 50;

// Reads events, one a line ("a ID BYTES [STREAM]", "f ID", "s ID STREAM", "e");
// blank lines and lines that begin with '#' do not count. An ID is a whole
// number and names a block from its `a` to its `f`; it may come again later.
//
// Throws InputError, naming file and line, for anything else: another letter,
// too many words, no number, an ID that is allocated twice or not at all.
AllocatorEvents ReadAllocatorEvents(const std::filesystem::path& path);

// Parses the same from text. Errors name `name` in place of a file.
AllocatorEvents ParseAllocatorEvents(std::string_view text,
                                     std::string_view name);

}  // namespace acplan::graph
