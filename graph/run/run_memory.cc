#include "graph/run/run_memory.h"

#include <ranges>

namespace acplan::graph {

void RunMemory::EndLives(StepId k) {
  const ModelResults& results = shape_->results;
  const std::vector<LifeId>& ends = shape_->lives.ends[k];
  const bool copies = k == results.end && data_parallel_.CopiesResults();
  const auto is_result = [&](LifeId life) {
    return copies && results.Has(shape_->step.lives[life].storage);
  };
  FreeReadyGradients(k);
  data_parallel_.FreeCopies(k);
  for (const LifeId life : ends) {
    if (!is_result(life)) End(life);
  }
  if (!copies) return;
  // The caller of the model can let go of them only once they are copied.
  CopyResults();
  for (const LifeId life : ends) {
    if (is_result(life)) End(life);
  }
}

// A copy takes the place of a result, unless autograd holds the result itself.
void RunMemory::CopyResults() {
  const ModelResults& results = shape_->results;
  std::vector<int32_t> originals;
  // The trace does not have their order. A loss, which is made last, leads the results
  // of transformers' models.
  for (const StorageId s : std::views::reverse(results.storages)) {
    int32_t& block = BlockOf(OriginalLife(s));
    if (block == kNotAllocated) continue;
    const TraceStorage& storage = shape_->trace.storages[s];
    const int32_t copy = events_.Allocate(s, storage.bytes);
    if (results.IsSavedInside(s)) {
      data_parallel_.AddCopy(copy, StepId{storage.scope_end});
    } else {
      originals.push_back(std::exchange(block, copy));
    }
  }
  FreeAll(originals);
}

// Frees the memory of gradients that from here on are views of buckets.
void RunMemory::FreeReadyGradients(StepId k) {
  if (!data_parallel_.HoldsGradients()) return;
  if (!data_parallel_.DelaysReduction()) {
    FreeGradients(k, Next(k));
  } else if (k == shape_->update) {
    FreeGradients(StepId{0}, Next(k));
  }
}

void RunMemory::FreeGradients(StepId first, StepId end) {
  for (const StepId k : IdRange(first, end)) {
    for (const StorageId gradient : shape_->ready[k]) {
      HandOn(OriginalLife(gradient), kNone);
    }
  }
}

void RunMemory::End(LifeId life) {
  const StorageId storage = shape_->step.lives[life].storage;
  HandOn(life,
         shape_->IsOriginal(life) ? GradientOf(storage) : StorageId(kNone));
}

// Returns the gradient that a storage becomes where there is none, or kNone.
StorageId RunMemory::GradientOf(StorageId storage) const {
  if (shape_->is_evaluation || data_parallel_.HoldsGradients()) {
    return kNone;
  }
  return shape_->places.becomes_gradient[storage];
}

// Returns the storage that gets the memory of one that a microbatch made and did not
// free.
StorageId RunMemory::HeirAtTheEnd(StorageId storage) const {
  if (shape_->is_evaluation) return kNone;
  const StorageId place = shape_->places.takes_place_of[storage];
  return place != kNone ? place : GradientOf(storage);
}

// Frees the memory of a life, or gives it to a storage that has none.
void RunMemory::HandOn(LifeId life, StorageId heir) {
  const int32_t block = std::exchange(BlockOf(life), kNotAllocated);
  if (block == kNotAllocated) return;
  if (heir != kNone && BlockOf(OriginalLife(heir)) == kNotAllocated) {
    BlockOf(OriginalLife(heir)) = block;
  } else {
    events_.Free(block);
  }
}

void RunMemory::EndMicrobatch() {
  for (const LifeId life : shape_->step.lives.ids()) {
    const StorageId storage = shape_->step.lives[life].storage;
    if (!shape_->IsOriginal(life)) {
      HandOn(life, kNone);
    } else if (shape_->trace.storages[storage].born != kNone) {
      HandOn(life, HeirAtTheEnd(storage));
    }
  }
  data_parallel_.EndMicrobatch();
}

void RunMemory::AllocateMissing(const std::vector<StorageId>& storages) {
  for (const StorageId s : storages) {
    const LifeId life = OriginalLife(s);
    if (BlockOf(life) == kNotAllocated) Allocate(life);
  }
}

void RunMemory::Allocate(LifeId life) {
  const StorageId storage = shape_->step.lives[life].storage;
  const TraceStorage& traced = shape_->trace.storages[storage];
  BlockOf(life) = events_.Allocate(storage, traced.bytes, traced.stream);
}

void RunMemory::FreeAll(const std::vector<int32_t>& blocks) {
  for (const int32_t block : blocks) events_.Free(block);
}

std::vector<std::pair<StorageId, int32_t>> RunMemory::LastingBlocks() const {
  auto blocks = BlocksOf(*shape_);
  const auto storages = static_cast<int32_t>(shape_->trace.storages.size());
  for (const auto& [number, block] : data_parallel_.Blocks()) {
    blocks.emplace_back(IdAt<StorageId>(storages + number), block);
  }
  return blocks;
}

}  // namespace acplan::graph
