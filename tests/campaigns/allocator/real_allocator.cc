#include "real_allocator.h"

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <sstream>
#if __has_include(<c10/cuda/PeerToPeerAccess.h>)
#include <c10/cuda/PeerToPeerAccess.h>
#define HAS_PEER_ACCESS 1
#endif

// In PyTorch's library, but in no header that it installs.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has_context)(DeviceIndex));
}

// Since 2.13, when the allocator learnt to tell captures from other uses.
#if TORCH_MINOR >= 13
#define TELLS_CAPTURES 1
#endif

namespace allocator = c10::cuda::CUDACachingAllocator;

namespace {

int captures = 0;  // under way

cudaStream_t StreamOf(int64_t stream) {
  return reinterpret_cast<cudaStream_t>(stream * 4096);
}

std::pair<unsigned long long, unsigned long long> PoolOf(int64_t name) {
  return {0, static_cast<unsigned long long>(name)};
}

}  // namespace

void RealStart(const std::string& config, int64_t device_bytes,
               double memory_fraction) {
  StandInSetTotal(static_cast<size_t>(device_bytes));
#ifdef HAS_PEER_ACCESS
  c10::cuda::detail::init_p2p_access_cache(1);
#endif
  c10::cuda::_internal::setHasPrimaryContext(
      [](c10::DeviceIndex) { return true; });
  allocator::setAllocatorSettings(config);
  allocator::init(1);
  if (memory_fraction < 1) allocator::setMemoryFraction(memory_fraction, 0);
}

void* RealAllocate(int64_t bytes, int64_t stream, std::string& error) {
  try {
    return allocator::raw_alloc_with_stream(static_cast<size_t>(bytes),
                                            StreamOf(stream));
  } catch (const c10::OutOfMemoryError&) {
    return nullptr;
  } catch (const std::exception& other) {
    error = other.what();
    return nullptr;
  }
}

void RealFree(void* block) { allocator::raw_delete(block); }

void RealRecordStream(void* block, int64_t stream) {
  c10::DataPtr pointer(block, block, allocator::get()->raw_deleter(),
                       c10::Device(c10::DeviceType::CUDA, 0));
  allocator::recordStream(
      pointer, c10::cuda::getStreamFromExternal(StreamOf(stream), 0));
  pointer.release_context();
}

void RealEmptyCache() { allocator::emptyCache(); }

void RealBeginPool(int64_t name, bool is_capture) {
  allocator::beginAllocateToPool(0, PoolOf(name),
                                 [](cudaStream_t) { return true; });
#ifdef TELLS_CAPTURES
  if (is_capture) allocator::markCaptureBegin(0);
#endif
  if (is_capture) StandInSetCapturing(++captures > 0);
}

void RealEndPool(int64_t name, bool is_capture) {
  if (is_capture) StandInSetCapturing(--captures > 0);
#ifdef TELLS_CAPTURES
  if (is_capture) allocator::markCaptureEnd(0);
#endif
  allocator::endAllocateToPool(0, PoolOf(name));
}

void RealReleasePool(int64_t name) { allocator::releasePool(0, PoolOf(name)); }

#ifdef TELLS_CAPTURES
void RealRecord() {
  allocator::recordHistory(true, nullptr, size_t{1} << 20,
                           allocator::RecordContext::NEVER, true, {});
}

std::string RealSnapshot(const std::string& config) {
  const auto snapshot = allocator::snapshot();
  std::ostringstream text;
  text << R"({"format":"acplan.snapshot","version":1,"allocator":")" << config
       << R"(","lines":[],"devices":[{"segments":[)";
  const char* comma = "";
  for (const auto& segment : snapshot.segments) {
    text << comma << R"({"address":)" << segment.address << R"(,"bytes":)"
         << segment.total_size << R"(,"stream":)"
         << reinterpret_cast<uintptr_t>(segment.stream) / 4096 << R"(,"pool":")"
         << (segment.is_large ? "large" : "small") << R"(","expandable":)"
         << (segment.is_expandable ? "true" : "false") << R"(,"private_pool":)";
    const auto [first, second] = segment.owner_private_pool_id;
    if (first == 0 && second == 0) {
      text << "null";
    } else {
      text << "[" << first << "," << second << "]";
    }
    text << R"(,"blocks":[)";
    comma = "";
    size_t address = segment.address;
    for (const auto& block : segment.blocks) {
      const char* state = block.allocated ? "allocated"
                          : block.active  ? "waiting"
                                          : "free";
      text << comma << R"([")" << state << R"(",)" << address << ","
           << block.size << "," << block.requested_size << ",-1]";
      address += block.size;
      comma = ",";
    }
    text << "]}";
    comma = ",";
  }
  text << R"(],"events":[)";
  comma = "";
  static const char* const kinds[] = {
      "alloc",        "free_requested", "free_completed", "segment_alloc",
      "segment_free", "segment_map",    "segment_unmap",  "",
      "oom"};
  using Action = c10::CachingDeviceAllocator::TraceEntry::Action;
  static_assert(Action::ALLOC == 0 && Action::SNAPSHOT == 7 &&
                Action::OOM == 8);
  for (const auto& entry : snapshot.device_traces.at(0)) {
    if (entry.action_ == Action::SNAPSHOT) continue;
    text << comma << R"([")" << kinds[entry.action_] << R"(",)" << entry.addr_
         << "," << entry.size_ << ","
         << reinterpret_cast<uintptr_t>(entry.stream_) / 4096 << ",-1]";
    comma = ",";
  }
  text << "]}]}";
  return text.str();
}
#else
void RealRecord() {}
std::string RealSnapshot(const std::string&) { return "{}"; }
#endif

RealCounts RealCount() {
  const auto stats = allocator::getDeviceStats(0);
  return {.allocated_bytes = stats.allocated_bytes[0].current,
          .reserved_bytes = stats.reserved_bytes[0].current,
          .peak_allocated_bytes = stats.allocated_bytes[0].peak,
          .peak_reserved_bytes = stats.reserved_bytes[0].peak,
          .retries = stats.num_alloc_retries,
          .failures = stats.num_ooms};
}
