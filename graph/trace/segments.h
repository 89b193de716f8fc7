#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/trace/trace.h"

namespace acplan::graph {

// Segments: runs of modules that may be checkpointed as one.
//
// A run is two or more children of one module, consecutive in the order in which
// it has them, that are called one right after the other: each as often as the
// others; the calls in this order and all in the same call; no operator, no save
// and no other call between them; all with gradients or all without.
//
// A segment is such a run as if it were a module whose call is around theirs. Its
// name is the name of the parent with the first and the last child: "GPT.h.0-2"
// is the run of GPT.h.0, GPT.h.1 and GPT.h.2. Its call
// - runs from the start of the first child's call to the end of the last one's;
// - has the first one's arguments and further inputs, the last one's results, and as
//   inputs those of any of them that are older than the call. A tensor that one of the
//   children hands to the next is made inside;
// - is in backward while one of the children's calls is.

// The first and the last child, in the modules of a trace without segments.
struct ModuleRun {
  ModuleId first = {};
  ModuleId last = {};

  bool operator==(const ModuleRun&) const = default;
};

// Returns the longest runs, as the children of each, in the order of modules.
std::vector<std::vector<ModuleId>> LongestRuns(const Trace& trace);

std::string SegmentName(const Trace& trace, const ModuleRun& run);

// An index of the modules of a trace by name. The trace must outlive the index.
class ModuleNames {
 public:
  explicit ModuleNames(const Trace& trace);

  // Returns the module with a name; kNone if there is none.
  ModuleId Find(std::string_view fqn) const;

 private:
  std::unordered_map<std::string_view, ModuleId> by_name_;
};

// Returns the children that a name means as those of a segment; nothing if it has not
// the form of one: it is a module's, or says of no parent its two children, the
// first before the last. They need not be a run. Throws InputError ("plan: ...")
// for a name with more than one such meaning.
std::optional<ModuleRun> RunNamed(const ModuleNames& modules,
                                  std::string_view name);
std::optional<ModuleRun> RunNamed(const Trace& trace, std::string_view name);

// Returns the step with segments of these runs. A segment stands among the modules
// before its first child, among the calls before its first child's call; all else is as
// before, but for indices of modules and calls. One segment may be inside another.
// Throws InputError ("plan: ...") for what is no run of the trace, naming the children
// between which it is interrupted, for the same twice, and for two that overlap without
// one being inside the other. The trace has no segments.
Trace WithSegments(const Trace& trace, std::vector<ModuleRun> runs);

}  // namespace acplan::graph
