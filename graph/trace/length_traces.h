#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/trace/trace.h"

namespace acplan::graph {

// A step whose inputs have this length: whatever a user varies, such as the tokens of a
// sequence.
struct TraceOfLength {
  int64_t length = 0;
  std::string name;  // in errors
  Trace trace;
};

// Returns whether two steps differ in bytes and run-times alone: the same operators make,
// read and save the same storages. Workspaces, which are no results of their operators
// and come and go with lengths, do not count.
bool AreAlike(const Trace& a, const Trace& b);

// Returns the step of a length: its own trace, or one between the two around it. Bytes of
// a storage are a polynomial in the length through these two and the nearest other
// trace that is alike: of the second degree, which attention has, or of the first
// if there is none. Run-times, and an operator's workspaces, are on the line between the two.
//
// Requires ascending lengths. Throws InputError for a length outside of the traces',
// and if the two around it are not alike.
Trace TraceAt(const std::vector<TraceOfLength>& traces, int64_t length);

}  // namespace acplan::graph
