#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "graph/run/data_parallel.h"
#include "graph/run/ddp_options.h"
#include "graph/run/run_events.h"
#include "graph/run/shape_parts.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The memory of a run: its requests, and what happens to the block of each life of a shape
// and to those of DistributedDataParallel.
class RunMemory {
 public:
  explicit RunMemory(const std::optional<DdpOptions>& ddp)
      : data_parallel_(ddp, events_) {}
  // `data_parallel_` refers to `events_`: no copies.
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  RunEvents& events() { return events_; }
  DataParallel& data_parallel() { return data_parallel_; }

  // Makes this the shape of the lives that follow. It must live until the next one.
  void Use(ShapeParts& shape) { shape_ = &shape; }

  void Allocate(LifeId life);
  // Allocates those that have no block.
  void AllocateMissing(const std::vector<StorageId>& storages);
  void FreeAll(const std::vector<int32_t>& blocks);

  // Ends the lives that end before a step, after the gradients that are then views of
  // buckets. Their blocks are freed, or go on under another name.
  void EndLives(StepId k);

  // Frees what the microbatch made and did not free, or hands it on.
  void EndMicrobatch();

  // Returns the storages that live on and their blocks. Memory of DistributedDataParallel
  // has numbers behind those of the storages.
  std::vector<std::pair<StorageId, int32_t>> LastingBlocks() const;

 private:
  void End(LifeId life);
  void CopyResults();
  void FreeReadyGradients(StepId k);
  void FreeGradients(StepId first, StepId end);
  StorageId GradientOf(StorageId storage) const;
  StorageId HeirAtTheEnd(StorageId storage) const;
  void HandOn(LifeId life, StorageId heir);
  int32_t& BlockOf(LifeId life) { return shape_->block_of_life[life]; }

  RunEvents events_;
  DataParallel data_parallel_;
  ShapeParts* shape_ = nullptr;
};

}  // namespace acplan::graph
