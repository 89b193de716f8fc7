#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace acplan::graph {

// The place of a block in its table.
enum class BlockId : int32_t {};

inline constexpr BlockId kNoBlock{-1};

// A free block as best fit orders it: by size, then by rank, which no other free
// block has.
struct FreeBlock {
  int64_t size = 0;
  int64_t rank = 0;
  BlockId block = kNoBlock;

  bool operator<(const FreeBlock& other) const {
    return size != other.size ? size < other.size : rank < other.rank;
  }
};

// A set of free blocks in that order. Chunks of sorted entries: a search takes
// logarithmic time, an insertion or removal moves at most one chunk.
class FreeList {
 public:
  struct Position {
    size_t chunk = 0;
    size_t entry = 0;
  };

  // Returns the first block that is not less than `key`, or End().
  Position LowerBound(const FreeBlock& key) const;

  Position Begin() const { return {0, 0}; }
  bool IsEnd(Position at) const { return at.chunk == chunks_.size(); }
  bool IsBegin(Position at) const { return at.chunk == 0 && at.entry == 0; }
  Position Next(Position at) const;
  Position Previous(Position at) const;
  const FreeBlock& At(Position at) const { return chunks_[at.chunk][at.entry]; }

  void Insert(const FreeBlock& block);
  void Erase(Position at);
  // Erases the block with this size and rank, which is in the list.
  void Erase(const FreeBlock& block) { Erase(LowerBound(block)); }

  bool IsEmpty() const { return chunks_.empty(); }

 private:
  // No chunk is empty.
  std::vector<std::vector<FreeBlock>> chunks_;
};

}  // namespace acplan::graph
