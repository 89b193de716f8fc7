#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace acplan::graph {

// Parses a size: a decimal number and a unit, with or without spaces between
// ("1.6GiB", "1.6 GiB", "1600MB"), or a whole number of bytes without a unit.
// Units: B, kB, MB, GB, TB, PB (powers of 1000) and KiB, MiB, GiB, TiB, PiB
// (powers of 1024). Computed exactly and rounded down to whole bytes. The
// result is positive.
//
// `what` names the flag or JSON path in the error. Throws InputError for
// anything else: no number, a fraction without a unit, an unknown unit (with
// the nearest known one), zero, a negative number, more than 2^62 bytes.
int64_t ParseByteSize(std::string_view text, std::string_view what);

// PyTorch's `display_bytes` (torch.distributed._tools.ilp_utils): "KiB", "MiB"
// and "GiB" with two decimals, "N.NN bytes" for any other unit.
std::string DisplayBytes(int64_t bytes, std::string_view unit = "MiB");

// A size for people: the largest binary unit that leaves at least 1, with two
// decimals ("14.44 GiB", "512.00 MiB", "17 B").
std::string FormatBytes(int64_t bytes);
std::string FormatManyBytes(double bytes);  // rounded, of any size

}  // namespace acplan::graph
