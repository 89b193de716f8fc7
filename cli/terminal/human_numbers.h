#pragma once

#include <string>

namespace acplan::cli {

// Returns a number with three decimals and a prefix, as Calculon prints it:
// "1.266 GiB", "1.143 TB/s".
enum class HumanUnit { kBytes, kBandwidth, kFlops, kCount };
std::string HumanNumber(double value, HumanUnit unit);
std::string HumanSeconds(double seconds);  // "1.266 s", "12.345 ms"

// Does the same for bytes, but returns "17 B" below 1 KiB.
std::string HumanBytes(double bytes);

}  // namespace acplan::cli
