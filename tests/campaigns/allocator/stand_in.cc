// A stand-in for the CUDA runtime and driver, enough for PyTorch's caching
// allocator: a device that counts bytes, hands out ever higher addresses and
// has done all work at once. It is built as libcudart.so, whose place it takes.

#include "stand_in.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <map>

namespace {

constexpr size_t kPage = size_t{2} << 20;

struct Range {
  size_t size = 0;
  size_t device_bytes = 0;
  int64_t number = 0;
};

size_t total = size_t{80} << 30;
size_t used_bytes = 0;
uintptr_t next_address = 0x7f0000000000;
int64_t next_number = 0;
cudaStreamCaptureStatus capture_status = cudaStreamCaptureStatusNone;
std::map<uintptr_t, Range> ranges;

size_t Pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

uintptr_t NewRange(size_t size, size_t device_bytes) {
  const uintptr_t address = next_address;
  next_address += Pages(size) + kPage;
  ranges[address] = {size, device_bytes, next_number++};
  return address;
}

int Reserve(unsigned long long* address, size_t size, size_t,
            unsigned long long, unsigned long long) {
  *address = NewRange(size, 0);
  return 0;
}

int FreeAddresses(unsigned long long address, size_t) {
  ranges.erase(address);
  return 0;
}

int Create(unsigned long long* handle, size_t size, const void*,
           unsigned long long) {
  if (used_bytes + size > total) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  used_bytes += size;
  *handle = size;
  return 0;
}

int Release(unsigned long long handle) {
  used_bytes -= handle;
  return 0;
}

int Succeed() { return 0; }
int NotSupported() { return 801; }

int Granularity(size_t* bytes, const void*, int) {
  *bytes = kPage;
  return 0;
}

int DeviceOf(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int Attribute(int* value, int, int) {
  *value = 1;
  return 0;
}

int ErrorText(int, const char** text) {
  *text = "stand-in";
  return 0;
}

struct Entry {
  const char* name;
  void* function;
};

void* EntryPoint(const char* name) {
  static const Entry entries[] = {
      {"cuMemAddressReserve", reinterpret_cast<void*>(Reserve)},
      {"cuMemAddressFree", reinterpret_cast<void*>(FreeAddresses)},
      {"cuMemCreate", reinterpret_cast<void*>(Create)},
      {"cuMemRelease", reinterpret_cast<void*>(Release)},
      {"cuMemMap", reinterpret_cast<void*>(Succeed)},
      {"cuMemUnmap", reinterpret_cast<void*>(Succeed)},
      {"cuMemSetAccess", reinterpret_cast<void*>(Succeed)},
      {"cuMemGetAllocationGranularity", reinterpret_cast<void*>(Granularity)},
      {"cuDeviceGet", reinterpret_cast<void*>(DeviceOf)},
      {"cuDeviceGetAttribute", reinterpret_cast<void*>(Attribute)},
      {"cuGetErrorString", reinterpret_cast<void*>(ErrorText)},
  };
  for (const Entry& entry : entries) {
    if (std::strcmp(name, entry.name) == 0) return entry.function;
  }
  return reinterpret_cast<void*>(NotSupported);
}

}  // namespace

extern "C" {

void StandInSetTotal(size_t bytes) { total = bytes; }

void StandInSetCapturing(bool is_capturing) {
  capture_status = is_capturing ? cudaStreamCaptureStatusActive
                                : cudaStreamCaptureStatusNone;
}

size_t StandInUsed() { return used_bytes; }

bool StandInFind(const void* address, int64_t* number, int64_t* offset) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  auto range = ranges.upper_bound(at);
  if (range == ranges.begin()) return false;
  --range;
  if (at >= range->first + range->second.size) return false;
  *number = range->second.number;
  *offset = static_cast<int64_t>(at - range->first);
  return true;
}

cudaError_t cudaMalloc(void** address, size_t size) {
  const size_t device_bytes = Pages(size);
  if (used_bytes + device_bytes > total) {
    *address = nullptr;
    return cudaErrorMemoryAllocation;
  }
  used_bytes += device_bytes;
  *address = reinterpret_cast<void*>(NewRange(size, device_bytes));
  return cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  const auto range = ranges.find(reinterpret_cast<uintptr_t>(address));
  if (range == ranges.end()) return cudaErrorInvalidValue;
  used_bytes -= range->second.device_bytes;
  ranges.erase(range);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* all) {
  *all = total;
  *free = total - used_bytes;
  return cudaSuccess;
}

// A macro in CUDA 12, where the function's name ends in _v2.
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  properties->totalGlobalMem = total;
  properties->major = 9;
  properties->multiProcessorCount = 132;
  std::strcpy(properties->name, "stand-in");
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "stand-in"; }
const char* cudaGetErrorString(cudaError_t) { return "stand-in"; }
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t,
                                  cudaStreamCaptureStatus* status) {
  *status = capture_status;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(1);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t) {
  *ms = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned, unsigned long long,
    cudaDriverEntryPointQueryResult* result) {
  *function = EntryPoint(name);
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t*,
                                     const cudaGraphNode_t**,
                                     const cudaGraphEdgeData**, size_t*) {
  *status = capture_status;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
#else
cudaError_t cudaStreamGetCaptureInfo_v2(cudaStream_t,
                                        cudaStreamCaptureStatus* status,
                                        unsigned long long* id, cudaGraph_t*,
                                        const cudaGraphNode_t**, size_t*) {
  *status = capture_status;
  if (id != nullptr) *id = 0;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function,
                                    unsigned long long,
                                    cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, 0, result);
}
#endif

}  // extern "C"
