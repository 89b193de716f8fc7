#include "graph/trace/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "graph/base/flag.h"
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

// The facts about modules and calls that make a run.
class Siblings {
 public:
  explicit Siblings(const Trace& trace)
      : trace_(trace),
        calls_(MakeCallForest(trace)),
        parent_(trace.modules.size(), kNone),
        subtree_end_(trace.modules.size(), trace.modules.end_id()) {
    std::vector<ModuleId> open;
    for (const ModuleId m : trace.modules.ids()) {
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
  ModuleId subtree_end(ModuleId module) const { return subtree_end_[module]; }

  // Returns the next child of the same parent, if any.
  ModuleId NextChild(ModuleId module) const {
    const ModuleId next = subtree_end_[module];
    const bool is_sibling =
        next < parent_.end_id() && parent_[next] == parent_[module];
    return is_sibling && parent_[module] != kNone ? next : kNone;
  }

  // Returns whether the calls of `next` follow those of the child before it.
  bool Follows(ModuleId module, ModuleId next) const {
    const std::vector<CallId>& before = calls_.by_module[module];
    const std::vector<CallId>& after = calls_.by_module[next];
    if (before.empty() || before.size() != after.size()) return false;
    for (size_t k = 0; k < before.size(); ++k) {
      if (!CallFollows(before[k], after[k])) return false;
    }
    return true;
  }

 private:
  bool CallFollows(CallId before, CallId after) const {
    const TraceCall& a = trace_.calls[before];
    const TraceCall& b = trace_.calls[after];
    return calls_.subtree_end[before] == after && a.parent == b.parent &&
           a.end == b.start && a.no_grad == b.no_grad &&
           !std::ranges::binary_search(own_saves_, std::pair(a.parent, a.end));
  }

  const Trace& trace_;
  CallForest calls_;
  IndexedVector<ModuleId, ModuleId> parent_, subtree_end_;
  std::vector<std::pair<CallId, Time>> own_saves_;
};

std::vector<ModuleId> Children(const Siblings& siblings, const ModuleRun& run) {
  std::vector<ModuleId> children;
  for (ModuleId m = run.first; m != kNone && m <= run.last;
       m = siblings.NextChild(m)) {
    children.push_back(m);
  }
  return children;
}

void RequireRun(const Trace& trace, const Siblings& siblings,
                const ModuleRun& run) {
  const std::vector<ModuleId> children = Children(siblings, run);
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

enum class RunId : int32_t {};  // in RunForest::runs

// Runs in the order of modules, those around others first, and the run of the same
// parent's children that is directly around each, if any.
struct RunForest {
  IndexedVector<RunId, ModuleRun> runs;
  IndexedVector<RunId, std::vector<ModuleId>> children;
  IndexedVector<RunId, RunId> parent;
};

RunForest MakeRunForest(const Trace& trace, const Siblings& siblings,
                        std::vector<ModuleRun> runs) {
  std::ranges::sort(runs, [](const ModuleRun& a, const ModuleRun& b) {
    return std::pair(a.first, b.last) < std::pair(b.first, a.last);
  });
  RunForest forest;
  std::vector<RunId> open;
  for (const ModuleRun& run : runs) {
    RequireRun(trace, siblings, run);
    const auto end = [&](RunId r) {
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
    forest.parent.push_back(is_among_siblings ? open.back() : kNone);
    open.push_back(forest.runs.Add(run));
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
        run_of_(trace.modules.size(), kNone) {
    for (const RunId r : runs_.runs.ids()) {
      starting_[runs_.runs[r].first].push_back(r);
      for (const ModuleId m : runs_.children[r]) run_of_[m] = r;
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
    for (const ModuleId m : trace_.modules.ids()) {
      for (const RunId r : starting_[m]) {
        new_of_run_.push_back(result.modules.end_id());
        TraceModule& segment = result.modules.emplace_back();
        segment.fqn = SegmentName(trace_, runs_.runs[r]);
      }
      new_module_.push_back(result.modules.Add(trace_.modules[m]));
    }
    new_module_.push_back(result.modules.end_id());
    for (const RunId r : runs_.runs.ids()) {
      const ModuleId end = siblings_.subtree_end(runs_.runs[r].last);
      // Segments that start with the next module stand before it: as many as it starts.
      ModuleId run_end = new_module_[end];
      if (end < starting_.end_id() && !starting_[end].empty()) {
        run_end = new_of_run_[starting_[end].front()];
      }
      result.modules[new_of_run_[r]].run_end = run_end;
    }
  }

  void AddCalls(Trace& result) {
    result.calls.clear();
    struct AtHand {
      CallId call = kNone;
      size_t count = 0;  // of its calls so far
    };
    IndexedVector<RunId, AtHand> at_hand(runs_.runs.size());
    for (const TraceCall& call : trace_.calls) {
      const auto parent_in = [&](RunId run) {
        return run != kNone ? at_hand[run].call : NewCall(call.parent);
      };
      for (const RunId r : starting_[call.module]) {
        TraceCall segment = CallOf(r, at_hand[r].count++);
        segment.parent = parent_in(runs_.parent[r]);
        at_hand[r].call = result.calls.Add(std::move(segment));
      }
      new_call_.push_back(result.calls.Add(call));
      result.calls.back().module = new_module_[call.module];
      result.calls.back().parent = parent_in(run_of_[call.module]);
    }
  }

  // Returns a segment's call number `k`, without its parent.
  TraceCall CallOf(RunId run, size_t k) const {
    const std::vector<ModuleId>& children = runs_.children[run];
    const auto call_of = [&](ModuleId module) -> const TraceCall& {
      return trace_.calls[siblings_.calls().by_module[module][k]];
    };
    TraceCall segment = call_of(children.front());
    segment.module = new_of_run_[run];
    segment.end = call_of(children.back()).end;
    segment.outputs = call_of(children.back()).outputs;
    for (const ModuleId m : children) {
      const TraceCall& call = call_of(m);
      for (const StorageId s : call.inputs) {
        const bool is_new =
            std::ranges::find(segment.inputs, s) == segment.inputs.end();
        if (is_new && trace_.storages[s].IsOlderThan(segment.start)) {
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

  CallId NewCall(CallId call) const {
    return call == kNone ? kNone : new_call_[call];
  }

  const Trace& trace_;
  const Siblings siblings_;
  const RunForest runs_;
  IndexedVector<ModuleId, std::vector<RunId>> starting_;
  IndexedVector<ModuleId, RunId> run_of_;  // the innermost
  // Ids in the result.
  IndexedVector<ModuleId, ModuleId> new_module_;
  IndexedVector<RunId, ModuleId> new_of_run_;
  IndexedVector<CallId, CallId> new_call_;
};

}  // namespace

std::vector<std::vector<ModuleId>> LongestRuns(const Trace& trace) {
  const Siblings siblings(trace);
  IndexedVector<ModuleId, Flag> is_counted(trace.modules.size(), false);
  std::vector<std::vector<ModuleId>> runs;
  for (const ModuleId first : trace.modules.ids()) {
    if (is_counted[first]) continue;
    std::vector<ModuleId> run = {first};
    for (ModuleId next = siblings.NextChild(first);
         next != kNone && siblings.Follows(run.back(), next);
         next = siblings.NextChild(next)) {
      is_counted[next] = true;
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
  for (const ModuleId m : trace.modules.ids()) {
    by_name_.try_emplace(trace.modules[m].fqn, m);
  }
}

ModuleId ModuleNames::Find(std::string_view fqn) const {
  const auto entry = by_name_.find(fqn);
  return entry == by_name_.end() ? kNone : entry->second;
}

std::optional<ModuleRun> RunNamed(const Trace& trace, std::string_view name) {
  return RunNamed(ModuleNames(trace), name);
}

std::optional<ModuleRun> RunNamed(const ModuleNames& modules,
                                  std::string_view name) {
  const std::string_view own = OwnName(name);
  if (own.find('-') == std::string_view::npos || modules.Find(name) != kNone) {
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
    if (now.first == kNone || now.first >= now.last) continue;
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
