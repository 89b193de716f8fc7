#include "graph/allocator/free_list.h"

#include <algorithm>

namespace acplan::graph {
namespace {

// Larger chunks move more entries, smaller ones lengthen the list of chunks.
constexpr size_t kMostEntries = 96;

}  // namespace

FreeList::Position FreeList::LowerBound(const FreeBlock& key) const {
  const auto chunk = std::ranges::partition_point(
      chunks_, [&](const auto& c) { return c.back() < key; });
  if (chunk == chunks_.end()) return {chunks_.size(), 0};
  const auto entry = std::lower_bound(chunk->begin(), chunk->end(), key);
  return {static_cast<size_t>(chunk - chunks_.begin()),
          static_cast<size_t>(entry - chunk->begin())};
}

FreeList::Position FreeList::Next(Position at) const {
  if (at.entry + 1 < chunks_[at.chunk].size()) return {at.chunk, at.entry + 1};
  return {at.chunk + 1, 0};
}

FreeList::Position FreeList::Previous(Position at) const {
  if (at.entry > 0) return {at.chunk, at.entry - 1};
  return {at.chunk - 1, chunks_[at.chunk - 1].size() - 1};
}

void FreeList::Insert(const FreeBlock& block) {
  if (chunks_.empty()) {
    chunks_.emplace_back().reserve(kMostEntries);
    chunks_.back().push_back(block);
    return;
  }
  Position at = LowerBound(block);
  if (IsEnd(at)) at = {chunks_.size() - 1, chunks_.back().size()};
  if (chunks_[at.chunk].size() == kMostEntries) {
    constexpr size_t kHalf = kMostEntries / 2;
    std::vector<FreeBlock> upper;
    upper.reserve(kMostEntries);
    std::vector<FreeBlock>& lower = chunks_[at.chunk];
    upper.assign(lower.begin() + kHalf, lower.end());
    lower.resize(kHalf);
    chunks_.insert(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk) + 1,
                   std::move(upper));
    if (at.entry > kHalf) at = {at.chunk + 1, at.entry - kHalf};
  }
  std::vector<FreeBlock>& chunk = chunks_[at.chunk];
  chunk.insert(chunk.begin() + static_cast<std::ptrdiff_t>(at.entry), block);
}

void FreeList::Erase(Position at) {
  std::vector<FreeBlock>& chunk = chunks_[at.chunk];
  chunk.erase(chunk.begin() + static_cast<std::ptrdiff_t>(at.entry));
  if (chunk.empty()) {
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(at.chunk));
  }
}

}  // namespace acplan::graph
