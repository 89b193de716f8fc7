#pragma once

#include <cstddef>
#include <cstdint>

// Control of the stand-in for the CUDA runtime.

extern "C" {

// Sets the bytes of the device. To be called before the allocator starts.
void StandInSetTotal(size_t bytes);

// Returns the bytes of the device that are in use.
size_t StandInUsed();

// Sets whether every stream is captured into a graph.
void StandInSetCapturing(bool is_capturing);

// Finds the range of addresses (of cudaMalloc or cuMemAddressReserve) that
// `address` lies in: its number, in the order in which ranges were made, and
// the bytes before the address. Returns whether there is one.
bool StandInFind(const void* address, int64_t* number, int64_t* offset);
}
