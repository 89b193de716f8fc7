#pragma once

#include <cstdint>
#include <string>

#include "stand_in.h"

// PyTorch's own caching allocator over the stand-in, behind plain functions.
// Only one can be started in a process.

// Starts the allocator on a device of so many bytes.
void RealStart(const std::string& config, int64_t device_bytes,
               double memory_fraction);

// Returns null if the allocator is out of memory. Sets `error` to the message
// of any other exception.
void* RealAllocate(int64_t bytes, int64_t stream, std::string& error);
void RealFree(void* block);
void RealRecordStream(void* block, int64_t stream);
void RealEmptyCache();

// Begins, ends and releases a private pool: of a graph that is captured, or of
// torch.cuda.use_mem_pool.
void RealBeginPool(int64_t name, bool is_capture);
void RealEndPool(int64_t name, bool is_capture);
void RealReleasePool(int64_t name);

struct RealCounts {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  int64_t peak_allocated_bytes = 0;
  int64_t peak_reserved_bytes = 0;
  int64_t retries = 0;
  int64_t failures = 0;
};

RealCounts RealCount();

// Records the history from now on, as torch.cuda.memory._record_memory_history
// does. Needs PyTorch 2.13 or later.
void RealRecord();

// Returns the snapshot with its history, as `python -m acplan snapshot` writes
// it, on one line.
std::string RealSnapshot(const std::string& config);
