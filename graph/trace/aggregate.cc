#include "graph/trace/aggregate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"
#include "graph/trace/allocation.h"
#include "graph/trace/call_facts.h"
#include "graph/trace/memory_timeline.h"
#include "graph/trace/operator_statistics.h"

// The profile of a traced step, in one pass over operators, storages and calls
// each:
//   MemoryTimeline   bytes by category at every operator and between them
//   CallFacts        the forest of calls, what autograd saves in each, and what
//                    is written to in place
//   sums             run-times and states by module, each operator and each
//                    parameter once
//   modules          from the snapshots at the ends of their calls, the sums,
//                    and their operators' statistics
//
// A module is not the sum of its calls: where a call is inside another one of
// the same module, its operators and activations are those of the outer call
// already (is_outermost), and calls that overlap in the backward pass count the
// time that they share once. Parameters that modules share count once in every
// module around them: where two modules with the same parameter meet, one of
// both is subtracted.

namespace acplan::graph {
namespace {

std::vector<StorageId> Distinct(std::vector<StorageId> storages) {
  std::ranges::sort(storages);
  const auto twice = std::ranges::unique(storages);
  storages.erase(twice.begin(), twice.end());
  return storages;
}

int64_t BytesOf(const Trace& trace, const std::vector<StorageId>& storages) {
  int64_t bytes = 0;
  for (const StorageId s : Distinct(storages)) {
    bytes += AllocatedBytes(trace.storages[s].bytes);
  }
  return bytes;
}

void RequireBackward(const Trace& trace) {
  const bool has_backward = std::ranges::any_of(
      trace.calls,
      [](const TraceCall& call) { return call.backward_start != kNever; });
  if (has_backward) return;
  throw InputError(
      "calls: expected backward_start and backward_end of the calls that "
      "have a backward, found none; record the trace anew");
}

void RequireSum(const Trace& trace) {
  int64_t bytes = 0;
  for (const TraceStorage& storage : trace.storages) {
    bytes += AllocatedBytes(storage.bytes);
  }
  if (bytes <= kMostExactInteger) return;
  throw InputError(fmt::format(
      "storages: expected at most 2^53 bytes in all, found {}", bytes));
}

void RequireRepresentable(const Profile& profile) {
  int64_t total = 0;
  for (const Module& m : profile.modules) {
    for (const int64_t bytes :
         {m.param_per_module, m.grad_per_module, m.act_fw_per_module,
          m.buffer_per_module, m.held_per_module}) {
      total += bytes;
      if (bytes > kMostExactInteger || total > kMostTotalBytes) {
        throw InputError(
            fmt::format("module {}: expected at most 2^53 bytes, and 2^62 of "
                        "all modules, "
                        "found {} and {}",
                        Quoted(m.fqn), bytes, total));
      }
    }
    for (const double ms : {m.fw_runtime_per_module, m.bw_runtime_per_module}) {
      if (ms > kMostNumber) {
        throw InputError(
            fmt::format("module {}: expected at most 1e18 ms, found {}",
                        Quoted(m.fqn), ms));
      }
    }
  }
}

// Returns the time of each module, summed call by call, so that equal calls have equal
// sums.
IndexedVector<ModuleId, double> ForwardMs(const Trace& trace,
                                          const CallForest& forest) {
  IndexedVector<CallId, double> call_ms(trace.calls.size(), 0);
  for (const TraceOperator& op : trace.operators) {
    if (op.call != kNone) call_ms[op.call] += op.runtime_ms;
  }
  for (const CallId c : std::views::reverse(trace.calls.ids())) {
    const CallId parent = trace.calls[c].parent;
    if (parent != kNone) call_ms[parent] += call_ms[c];
  }
  IndexedVector<ModuleId, double> forward_ms(trace.modules.size(), 0);
  for (const ModuleId m : trace.modules.ids()) {
    for (const CallId c : forest.by_module[m]) {
      if (forest.is_outermost[c]) forward_ms[m] += call_ms[c];
    }
  }
  return forward_ms;
}

IndexedVector<ModuleId, double> BackwardMs(const Trace& trace,
                                           const CallForest& forest) {
  std::vector<double> ms_before = {0};  // indexed by time
  ms_before.reserve(trace.operators.size() + 1);
  for (const TraceOperator& op : trace.operators) {
    ms_before.push_back(ms_before.back() + op.runtime_ms);
  }
  IndexedVector<ModuleId, double> backward_ms(trace.modules.size(), 0);
  for (const ModuleId m : trace.modules.ids()) {
    std::vector<CallId> calls = forest.by_module[m];
    std::ranges::sort(calls, {},
                      [&](CallId c) { return trace.calls[c].backward_start; });
    Time counted_until = 0;
    for (const CallId c : calls) {
      const TraceCall& call = trace.calls[c];
      if (call.backward_start == kNever || call.backward_end <= counted_until) {
        continue;
      }
      backward_ms[m] += ms_before[call.backward_end] -
                        ms_before[std::max(call.backward_start, counted_until)];
      counted_until = call.backward_end;
    }
  }
  return backward_ms;
}

// The tree of modules, those that are never called included.
struct ModuleForest {
  IndexedVector<ModuleId, ModuleId> parent;
  IndexedVector<ModuleId, ModuleId> subtree_end;  // after the last module below
};

ModuleForest MakeModuleForest(const Trace& trace) {
  const size_t count = trace.modules.size();
  ModuleForest forest = {.parent = {}, .subtree_end = {}};
  forest.parent.assign(count, kNone);
  forest.subtree_end.assign(count, trace.modules.end_id());
  const auto holds = [&](ModuleId module, ModuleId below) {
    if (trace.modules[module].IsSegment()) {
      return below < trace.modules[module].run_end;
    }
    const std::string_view fqn = trace.modules[module].fqn;
    return std::string_view(trace.modules[below].fqn).starts_with(fqn) &&
           trace.modules[below].fqn[fqn.size()] == '.';
  };
  std::vector<ModuleId> open;
  for (const ModuleId m : trace.modules.ids()) {
    while (!open.empty() && !holds(open.back(), m)) {
      forest.subtree_end[open.back()] = m;
      open.pop_back();
    }
    if (!open.empty()) forest.parent[m] = open.back();
    open.push_back(m);
  }
  return forest;
}

// Returns the bytes of each module's parameters or buffers with those below it, each
// once.
IndexedVector<ModuleId, int64_t> StateBytes(
    const Trace& trace, const ModuleForest& forest,
    std::vector<StorageId> TraceModule::*storages) {
  IndexedVector<ModuleId, int64_t> sums(trace.modules.size(), 0);
  IndexedVector<StorageId, ModuleId> last(trace.storages.size(), kNone);
  for (const ModuleId m : trace.modules.ids()) {
    for (const StorageId s : trace.modules[m].*storages) {
      const int64_t bytes = AllocatedBytes(trace.storages[s].bytes);
      sums[m] += bytes;
      // Not twice where the modules that have it meet.
      ModuleId meeting = last[s];
      while (meeting != kNone && forest.subtree_end[meeting] <= m) {
        meeting = forest.parent[meeting];
      }
      if (meeting != kNone) sums[meeting] -= bytes;
      last[s] = m;
    }
  }
  for (const ModuleId m : std::views::reverse(sums.ids())) {
    if (forest.parent[m] != kNone) sums[forest.parent[m]] += sums[m];
  }
  return sums;
}

Measured MeasuredStep(const Trace& trace, const MemoryTimeline& timeline) {
  Measured measured;
  const auto end = static_cast<Time>(trace.operators.size());
  if (end > 0) measured.peak_bytes = timeline.Peak(0, end)[kTotal];
  if (end > trace.backward_end) {
    measured.opt_step_peak_categories = timeline.Peak(trace.backward_end, end);
    measured.opt_step_peak_bytes = (*measured.opt_step_peak_categories)[kTotal];
  }
  std::array<int64_t, kStorageCategories> before_step = {};
  for (const TraceStorage& storage : trace.storages) {
    if (storage.born != kNone) continue;
    before_step[static_cast<size_t>(storage.category)] +=
        AllocatedBytes(storage.bytes);
  }
  const auto bytes = [&](StorageCategory category) {
    return before_step[static_cast<size_t>(category)];
  };
  measured.param_bytes = bytes(StorageCategory::kParameter);
  measured.grad_bytes = timeline.Between(trace.backward_end)[kGrad];
  measured.optimizer_bytes = bytes(StorageCategory::kOptimizer);
  measured.buffer_bytes = bytes(StorageCategory::kBuffer);
  measured.input_bytes = bytes(StorageCategory::kInput);
  return measured;
}

// The modules of calls, each once.
std::vector<std::string> ModulesOf(const Trace& trace,
                                   const std::vector<CallId>& calls) {
  std::vector<std::string> fqns;
  IndexedVector<ModuleId, Flag> is_named(trace.modules.size(), false);
  for (const CallId c : calls) {
    const ModuleId m = trace.calls[c].module;
    if (!std::exchange(is_named[m], true)) fqns.push_back(trace.modules[m].fqn);
  }
  return fqns;
}

ModuleOrders Orders(const Trace& trace, const CallForest& forest) {
  const IdRange<CallId> all = trace.calls.ids();
  const std::vector<CallId> pre(all.begin(), all.end());
  std::vector<CallId> firsts;
  for (const CallId c : forest.post_order) {
    if (forest.by_module[trace.calls[c].module].front() == c) {
      firsts.push_back(c);
    }
  }
  // At equal times backward enters a call before the calls inside it, and
  // leaves it after them, the last one first.
  std::vector<CallId> bw_pre(forest.post_order.rbegin(),
                             forest.post_order.rend());
  std::ranges::stable_sort(
      bw_pre, {}, [&](CallId c) { return trace.calls[c].backward_start; });
  std::vector<CallId> bw_post(pre.rbegin(), pre.rend());
  std::ranges::stable_sort(
      bw_post, {}, [&](CallId c) { return trace.calls[c].backward_end; });
  const auto has_no_backward = [&](CallId c) {
    return trace.calls[c].backward_start == kNever;
  };
  std::erase_if(bw_pre, has_no_backward);
  std::erase_if(bw_post, has_no_backward);
  return {.fw_pre = ModulesOf(trace, pre),
          .bw_pre = ModulesOf(trace, bw_pre),
          .fw_post = ModulesOf(trace, firsts),
          .bw_post = ModulesOf(trace, bw_post)};
}

// Snapshots at the ends of a call. Events between two operators have no order in a
// trace; Aggregate's contract says what counts.
class CallSnapshots {
 public:
  CallSnapshots(const Trace& trace, const MemoryTimeline& timeline)
      : trace_(trace), timeline_(timeline) {}

  MemorySnapshot BeforeForward(const TraceCall& call) const {
    return WithFreed(timeline_.Between(call.start), call.inputs, call.start,
                     /*born_since=*/-1);
  }

  MemorySnapshot AfterForward(const TraceCall& call) const {
    MemorySnapshot snapshot = timeline_.Between(call.end);
    if (call.start == call.end) {
      std::vector<StorageId> storages = call.inputs;
      storages.insert(storages.end(), call.outputs.begin(), call.outputs.end());
      return WithFreed(snapshot, storages, call.end, /*born_since=*/-1);
    }
    Add(snapshot, timeline_.FreedAt(call.end, call.start));
    return WithFreed(snapshot, call.outputs, call.end, call.start);
  }

  const MemorySnapshot& BeforeBackward(const TraceCall& call) const {
    return timeline_.Between(call.backward_start);
  }

  // At the end of the pass whoever asked for it still holds the loss.
  MemorySnapshot AfterBackward(const TraceCall& call) const {
    MemorySnapshot snapshot = timeline_.Between(call.backward_end);
    if (call.backward_end == trace_.backward_end) {
      Add(snapshot,
          timeline_.FreedAt(trace_.backward_end, trace_.forward_end + 1));
    }
    return snapshot;
  }

  // The first with the most bytes of `start` and the snapshots while the
  // operators [begin, end) run.
  MemorySnapshot PeakSince(const MemorySnapshot& start, Time begin,
                           Time end) const {
    if (begin == end) return start;
    const MemorySnapshot& peak = timeline_.Peak(begin, end);
    return peak[kTotal] > start[kTotal] ? peak : start;
  }

 private:
  // Adds the storages that are freed at `time` and were born in
  // [born_since, time).
  MemorySnapshot WithFreed(MemorySnapshot snapshot,
                           const std::vector<StorageId>& storages, Time time,
                           Time born_since) const {
    for (const StorageId s : Distinct(storages)) {
      const TraceStorage& storage = trace_.storages[s];
      if (storage.freed == time && StartOf(storage.born) >= born_since &&
          storage.IsOlderThan(time)) {
        Add(snapshot, timeline_.CategoryOf(storage),
            AllocatedBytes(storage.bytes));
      }
    }
    return snapshot;
  }

  const Trace& trace_;
  const MemoryTimeline& timeline_;
};

int64_t HeldBytes(const CallFacts& facts, ModuleId module) {
  std::vector<StorageId> storages;
  for (const CallId c : facts.forest.by_module[module]) {
    const Time first_request = facts.saves.first_request[c];
    if (first_request == kNever) continue;
    for (const StorageId s : facts.trace.calls[c].inputs) {
      if (facts.trace.storages[s].freed < first_request) storages.push_back(s);
    }
  }
  return BytesOf(facts.trace, storages);
}

// A module with all that its calls say of memory.
Module MemoryOfModule(const CallFacts& facts, const CallSnapshots& snapshots,
                      ModuleId m) {
  Module module;
  ModuleSnapshots& snap = module.snap.emplace();
  for (const CallId c : facts.forest.by_module[m]) {
    const TraceCall& call = facts.trace.calls[c];
    const MemorySnapshot pre = snapshots.BeforeForward(call);
    const MemorySnapshot post = snapshots.AfterForward(call);
    const int64_t output = BytesOf(facts.trace, call.outputs);
    if (facts.forest.is_outermost[c]) {
      module.act_fw_per_module +=
          std::max<int64_t>(0, post[kAct] - pre[kAct] - output);
    }
    const MemorySnapshot peak = snapshots.PeakSince(pre, call.start, call.end);
    if (!snap.peak_fw || peak[kTotal] >= (*snap.peak_fw)[kTotal]) {
      snap.pre_fw = pre;
      snap.post_fw = post;
      snap.peak_fw = peak;
      module.input_per_module = BytesOf(facts.trace, call.inputs);
      module.output_per_module = output;
    }
    if (call.backward_start == kNever) continue;
    const MemorySnapshot& pre_bw = snapshots.BeforeBackward(call);
    const MemorySnapshot peak_bw =
        snapshots.PeakSince(pre_bw, call.backward_start, call.backward_end);
    if (!snap.peak_bw || peak_bw[kTotal] >= (*snap.peak_bw)[kTotal]) {
      snap.pre_bw = pre_bw;
      snap.post_bw = snapshots.AfterBackward(call);
      snap.peak_bw = peak_bw;
    }
  }
  module.held_per_module = HeldBytes(facts, m);
  module.act_total = (*snap.post_fw)[kAct];
  module.no_backward = !snap.pre_bw;
  if (module.no_backward) return module;
  module.grad_total = (*snap.pre_bw)[kGrad];
  module.act_bw_per_module = (*snap.peak_bw)[kAct];
  module.act_grad_per_module = (*snap.peak_bw)[kTemp] - (*snap.pre_bw)[kTemp];
  return module;
}

std::vector<Module> MakeModules(const CallFacts& facts,
                                const MemoryTimeline& timeline) {
  const Trace& trace = facts.trace;
  const CallSnapshots snapshots(trace, timeline);
  const ModuleForest forest = MakeModuleForest(trace);
  const auto forward_ms = ForwardMs(trace, facts.forest);
  const auto backward_ms = BackwardMs(trace, facts.forest);
  const auto parameters = StateBytes(trace, forest, &TraceModule::parameters);
  const auto buffers = StateBytes(trace, forest, &TraceModule::buffers);
  std::vector<Module> modules;
  modules.reserve(trace.modules.size());
  for (const ModuleId m : trace.modules.ids()) {
    if (facts.forest.by_module[m].empty()) continue;
    Module& module = modules.emplace_back(MemoryOfModule(facts, snapshots, m));
    module.fqn = trace.modules[m].fqn;
    module.is_segment = trace.modules[m].IsSegment();
    const ModuleId parent = forest.parent[m];
    if (parent != kNone && trace.modules[parent].IsSegment()) {
      module.segment = trace.modules[parent].fqn;
    }
    module.is_leaf = forest.subtree_end[m] == Next(m);
    module.calls = static_cast<int>(facts.forest.by_module[m].size());
    module.param_per_module = parameters[m];
    module.grad_per_module = parameters[m];
    module.buffer_per_module = buffers[m];
    module.fw_runtime_per_module = forward_ms[m];
    module.bw_runtime_per_module = backward_ms[m];
    if (!module.is_leaf) module.sac = OperatorStatistics(facts, m);
  }
  return modules;
}

}  // namespace

Profile Aggregate(const Trace& trace) {
  RequireBackward(trace);
  RequireSum(trace);
  const MemoryTimeline timeline(trace);
  const CallFacts facts(trace);
  Profile profile{.model = trace.model,
                  .device = trace.device,
                  .measured = MeasuredStep(trace, timeline),
                  .order = Orders(trace, facts.forest),
                  .modules = MakeModules(facts, timeline)};
  RequireRepresentable(profile);
  return profile;
}

}  // namespace acplan::graph
