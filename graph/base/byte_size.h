#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace acplan::graph {

// Parses a size: a decimal number and a unit, with or without spaces between ("1.6GiB",
// "1.6 GiB", "1600MB"), or a whole number of bytes without a unit. Units: B, kB, MB, GB,
// TB, PB (powers of 1000) and KiB, MiB, GiB, TiB, PiB (powers of 1024). The result is
// positive: it is computed exactly and rounded down to whole bytes.
//
// Errors name `what`, a flag or a JSON path. Throws InputError for anything else: no
// number, a fraction without a unit, an unknown unit (the error names the nearest known
// ones), zero, a negative number, more than 2^62 bytes.
int64_t ParseByteSize(std::string_view text, std::string_view what);

// Parses a rate in bytes per second: a size, as above, and "/s" ("25GB/s"). Throws
// InputError as ParseByteSize does.
int64_t ParseByteRate(std::string_view text, std::string_view what);

// Returns a size as PyTorch's `display_bytes` (torch.distributed._tools.ilp_utils) does: in
// "KiB", "MiB" or "GiB" with two decimals, as "N.NN bytes" for any other unit.
std::string DisplayBytes(int64_t bytes, std::string_view unit = "MiB");

// Returns a size for people to read: in the largest binary unit in which it is at least 1,
// with two decimals ("14.44 GiB", "512.00 MiB", "17 B").
std::string FormatBytes(int64_t bytes);
std::string FormatManyBytes(double bytes);  // of any magnitude, rounded

}  // namespace acplan::graph
