#include "graph/trace/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/trace/call_facts.h"

// Adding a segment changes no time, so calls remain ordered by start and in
// pre-order: the segment's call starts with its first child's and stands before
// it, and the calls from there to the end of the last child's, which follow each
// other without another one between them, are what is inside it. Runs that are
// inside each other or apart make calls that are.

namespace acplan::graph {
namespace {

std::string_view ParentName(std::string_view fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == std::string_view::npos ? "" : fqn.substr(0, dot);
}

std::string_view OwnName(std::string_view fqn) {
  const size_t dot = fqn.rfind('.');
  return dot == std::string_view::npos ? fqn : fqn.substr(dot + 1);
}

// What a run is told by.
class Siblings {
 public:
  explicit Siblings(const Trace& trace)
      : trace_(trace),
        calls_(MakeCallForest(trace)),
        parent_(trace.modules.size(), -1),
        subtree_end_(trace.modules.size(),
                     static_cast<int32_t>(trace.modules.size())) {
    std::vector<int32_t> open;
    for (int32_t m = 0; m < std::ssize(trace.modules); ++m) {
      const std::string_view parent = ParentName(trace.modules[m].fqn);
      while (!open.empty() && trace.modules[open.back()].fqn != parent) {
        subtree_end_[open.back()] = m;
        open.pop_back();
      }
      if (!open.empty()) parent_[m] = open.back();
      open.push_back(m);
    }
    for (const SavedTensor& saved : trace.saved) {
      own_saves_.emplace_back(saved.call, saved.packed);
    }
    std::ranges::sort(own_saves_);
  }

  const CallForest& calls() const { return calls_; }
  int32_t subtree_end(int32_t module) const { return subtree_end_[module]; }

  // The next child of the same parent, -1: none.
  int32_t Next(int32_t module) const {
    const int32_t next = subtree_end_[module];
    const bool is_sibling =
        next < std::ssize(parent_) && parent_[next] == parent_[module];
    return is_sibling && parent_[module] >= 0 ? next : -1;
  }

  // Returns whether the calls of `next` follow those of the child before it.
  bool Follows(int32_t module, int32_t next) const {
    const std::vector<int32_t>& before = calls_.by_module[module];
    const std::vector<int32_t>& after = calls_.by_module[next];
    if (before.empty() || before.size() != after.size()) return false;
    for (size_t k = 0; k < before.size(); ++k) {
      if (!CallFollows(before[k], after[k])) return false;
    }
    return true;
  }

 private:
  bool CallFollows(int32_t before, int32_t after) const {
    const TraceCall& a = trace_.calls[before];
    const TraceCall& b = trace_.calls[after];
    return calls_.subtree_end[before] == after && a.parent == b.parent &&
           a.end == b.start && a.no_grad == b.no_grad &&
           !std::ranges::binary_search(own_saves_, std::pair(a.parent, a.end));
  }

  const Trace& trace_;
  CallForest calls_;
  std::vector<int32_t> parent_, subtree_end_;           // a module
  std::vector<std::pair<int32_t, int32_t>> own_saves_;  // a call, a time
};

std::vector<int32_t> Children(const Siblings& siblings, const ModuleRun& run) {
  std::vector<int32_t> children;
  for (int32_t m = run.first; m >= 0 && m <= run.last; m = siblings.Next(m)) {
    children.push_back(m);
  }
  return children;
}

void RequireRun(const Trace& trace, const Siblings& siblings,
                const ModuleRun& run) {
  const std::vector<int32_t> children = Children(siblings, run);
  if (children.size() < 2 || children.back() != run.last) {
    throw InputError(fmt::format(
        "plan: {}: expected two children of one module, the first before the "
        "last, found others",
        Quoted(SegmentName(trace, run))));
  }
  for (size_t k = 1; k < children.size(); ++k) {
    if (siblings.Follows(children[k - 1], children[k])) continue;
    throw InputError(fmt::format(
        "plan: {}: expected calls that follow each other in the trace, found "
        "none of {} right after {}",
        Quoted(SegmentName(trace, run)),
        Quoted(OwnName(trace.modules[children[k]].fqn)),
        Quoted(OwnName(trace.modules[children[k - 1]].fqn))));
  }
}

// Runs in the order of modules, those around others first, and which run of the
// same parent's children is directly around each, -1: none.
struct RunForest {
  std::vector<ModuleRun> runs;
  std::vector<std::vector<int32_t>> children;
  std::vector<int32_t> parent;
};

RunForest MakeRunForest(const Trace& trace, const Siblings& siblings,
                        std::vector<ModuleRun> runs) {
  std::ranges::sort(runs, [](const ModuleRun& a, const ModuleRun& b) {
    return std::pair(a.first, -a.last) < std::pair(b.first, -b.last);
  });
  RunForest forest;
  std::vector<int32_t> open;
  for (const ModuleRun& run : runs) {
    RequireRun(trace, siblings, run);
    const auto end = [&](int32_t r) {
      return siblings.subtree_end(forest.runs[r].last);
    };
    while (!open.empty() && end(open.back()) <= run.first) open.pop_back();
    if (!open.empty() && (forest.runs[open.back()] == run ||
                          end(open.back()) < siblings.subtree_end(run.last))) {
      throw InputError(fmt::format(
          "plan: {} and {}: expected runs that are apart or one inside the "
          "other, found {}",
          Quoted(SegmentName(trace, forest.runs[open.back()])),
          Quoted(SegmentName(trace, run)),
          forest.runs[open.back()] == run ? "one twice" : "an overlap"));
    }
    const bool is_among_siblings =
        !open.empty() &&
        std::ranges::binary_search(forest.children[open.back()], run.first);
    forest.parent.push_back(is_among_siblings ? open.back() : -1);
    open.push_back(static_cast<int32_t>(forest.runs.size()));
    forest.runs.push_back(run);
    forest.children.push_back(Children(siblings, run));
  }
  return forest;
}

class SegmentInserter {
 public:
  SegmentInserter(const Trace& trace, std::vector<ModuleRun> runs)
      : trace_(trace),
        siblings_(trace),
        runs_(MakeRunForest(trace, siblings_, std::move(runs))),
        starting_(trace.modules.size()),
        run_of_(trace.modules.size(), -1) {
    for (int32_t r = 0; r < std::ssize(runs_.runs); ++r) {
      starting_[runs_.runs[r].first].push_back(r);
      for (const int32_t m : runs_.children[r]) run_of_[m] = r;
    }
  }

  Trace Run() && {
    Trace result = trace_;
    AddModules(result);
    AddCalls(result);
    for (TraceOperator& op : result.operators) op.call = NewCall(op.call);
    for (SavedTensor& saved : result.saved) saved.call = NewCall(saved.call);
    return result;
  }

 private:
  void AddModules(Trace& result) {
    result.modules.clear();
    std::vector<int32_t> ends;  // before the modules that are added
    for (int32_t m = 0; m < std::ssize(trace_.modules); ++m) {
      for (const int32_t r : starting_[m]) {
        new_of_run_.push_back(static_cast<int32_t>(result.modules.size()));
        TraceModule& segment = result.modules.emplace_back();
        segment.fqn = SegmentName(trace_, runs_.runs[r]);
      }
      new_module_.push_back(static_cast<int32_t>(result.modules.size()));
      result.modules.push_back(trace_.modules[m]);
    }
    new_module_.push_back(static_cast<int32_t>(result.modules.size()));
    for (size_t r = 0; r < runs_.runs.size(); ++r) {
      const int32_t end = siblings_.subtree_end(runs_.runs[r].last);
      // Segments that start with the next module stand before it.
      const auto before_next =
          end < std::ssize(starting_) ? std::ssize(starting_[end]) : 0;
      result.modules[new_of_run_[r]].run_end =
          new_module_[end] - static_cast<int32_t>(before_next);
    }
  }

  void AddCalls(Trace& result) {
    result.calls.clear();
    struct AtHand {
      int32_t call = -1;
      size_t count = 0;  // of its calls so far
    };
    std::vector<AtHand> at_hand(runs_.runs.size());
    for (const TraceCall& call : trace_.calls) {
      const auto parent_in = [&](int32_t run) {
        return run >= 0 ? at_hand[run].call : NewCall(call.parent);
      };
      for (const int32_t r : starting_[call.module]) {
        TraceCall segment = CallOf(r, at_hand[r].count++);
        segment.parent = parent_in(runs_.parent[r]);
        at_hand[r].call = static_cast<int32_t>(result.calls.size());
        result.calls.push_back(std::move(segment));
      }
      new_call_.push_back(static_cast<int32_t>(result.calls.size()));
      result.calls.push_back(call);
      result.calls.back().module = new_module_[call.module];
      result.calls.back().parent = parent_in(run_of_[call.module]);
    }
  }

  // A segment's call number `k`, without its parent.
  TraceCall CallOf(int32_t run, size_t k) const {
    const std::vector<int32_t>& children = runs_.children[run];
    const auto call_of = [&](int32_t module) -> const TraceCall& {
      return trace_.calls[siblings_.calls().by_module[module][k]];
    };
    TraceCall segment = call_of(children.front());
    segment.module = new_of_run_[run];
    segment.end = call_of(children.back()).end;
    segment.outputs = call_of(children.back()).outputs;
    for (const int32_t m : children) {
      const TraceCall& call = call_of(m);
      for (const int32_t s : call.inputs) {
        const bool is_new =
            std::ranges::find(segment.inputs, s) == segment.inputs.end();
        if (is_new && trace_.storages[s].born < segment.start) {
          segment.inputs.push_back(s);
        }
      }
      if (call.backward_start == kNever) continue;
      segment.backward_start =
          std::min(segment.backward_start, call.backward_start);
      segment.backward_end =
          segment.backward_end == kNever
              ? call.backward_end
              : std::max(segment.backward_end, call.backward_end);
    }
    return segment;
  }

  int32_t NewCall(int32_t call) const {
    return call < 0 ? -1 : new_call_[call];
  }

  const Trace& trace_;
  const Siblings siblings_;
  const RunForest runs_;
  std::vector<std::vector<int32_t>> starting_;  // a module: runs
  std::vector<int32_t> run_of_;                 // a module: the innermost
  // Indices in the result.
  std::vector<int32_t> new_module_, new_of_run_, new_call_;
};

}  // namespace

std::vector<std::vector<int32_t>> LongestRuns(const Trace& trace) {
  const Siblings siblings(trace);
  std::vector<char> is_counted(trace.modules.size(), 0);
  std::vector<std::vector<int32_t>> runs;
  for (int32_t first = 0; first < std::ssize(trace.modules); ++first) {
    if (is_counted[first]) continue;
    std::vector<int32_t> run = {first};
    for (int32_t next = siblings.Next(first);
         next >= 0 && siblings.Follows(run.back(), next);
         next = siblings.Next(next)) {
      is_counted[next] = 1;
      run.push_back(next);
    }
    if (run.size() > 1) runs.push_back(std::move(run));
  }
  return runs;
}

std::string SegmentName(const Trace& trace, const ModuleRun& run) {
  return fmt::format("{}-{}", trace.modules[run.first].fqn,
                     OwnName(trace.modules[run.last].fqn));
}

ModuleNames::ModuleNames(const Trace& trace) {
  for (int32_t m = 0; m < std::ssize(trace.modules); ++m) {
    by_name_.try_emplace(trace.modules[m].fqn, m);
  }
}

int32_t ModuleNames::Find(std::string_view fqn) const {
  const auto found = by_name_.find(fqn);
  return found == by_name_.end() ? -1 : found->second;
}

std::optional<ModuleRun> RunNamed(const Trace& trace, std::string_view name) {
  return RunNamed(ModuleNames(trace), name);
}

std::optional<ModuleRun> RunNamed(const ModuleNames& modules,
                                  std::string_view name) {
  const std::string_view own = OwnName(name);
  if (own.find('-') == std::string_view::npos || modules.Find(name) >= 0) {
    return std::nullopt;
  }
  const std::string parent(ParentName(name));
  std::optional<ModuleRun> run;
  for (size_t dash = own.find('-'); dash != std::string_view::npos;
       dash = own.find('-', dash + 1)) {
    const ModuleRun now = {
        .first =
            modules.Find(fmt::format("{}.{}", parent, own.substr(0, dash))),
        .last =
            modules.Find(fmt::format("{}.{}", parent, own.substr(dash + 1)))};
    if (now.first < 0 || now.first >= now.last) continue;
    if (run) {
      throw InputError(fmt::format(
          "plan: {}: expected two children of {}, found more than one way to "
          "read them",
          Quoted(name), Quoted(parent)));
    }
    run = now;
  }
  return run;
}

Trace WithSegments(const Trace& trace, std::vector<ModuleRun> runs) {
  return SegmentInserter(trace, std::move(runs)).Run();
}

}  // namespace acplan::graph
