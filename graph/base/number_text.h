#pragma once

#include <string>
#include <string_view>

namespace acplan::graph {

// Numbers as tools written in Python show them, so that files and lines stay the same for
// their readers.

// Returns Python's repr of a float: the shortest decimal that reads back as `value`, always
// with a point or an exponent ("10.0", "1e+16", "1e-05").
std::string FloatText(double value);

// Returns the value with a suffix in steps of 1000 up to E: 25,600 is "25.6" and "k". The
// number has `precision` decimals and comes before `separator` and the suffix.
std::string HumanText(double value, int precision, std::string_view separator);

}  // namespace acplan::graph
