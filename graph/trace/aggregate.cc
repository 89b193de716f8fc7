#include "graph/trace/aggregate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

std::vector<int32_t> Distinct(std::vector<int32_t> storages) {
  std::ranges::sort(storages);
  const auto twice = std::ranges::unique(storages);
  storages.erase(twice.begin(), twice.end());
  return storages;
}

int64_t BytesOf(const Trace& trace, const std::vector<int32_t>& storages) {
  int64_t bytes = 0;
  for (const int32_t s : Distinct(storages)) {
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

// By module. Summed call by call, so that equal calls have equal sums.
std::vector<double> ForwardMs(const Trace& trace, const CallForest& forest) {
  std::vector<double> call_ms(trace.calls.size(), 0);
  for (const TraceOperator& op : trace.operators) {
    if (op.call >= 0) call_ms[op.call] += op.runtime_ms;
  }
  for (size_t c = trace.calls.size(); c-- > 0;) {
    const int32_t parent = trace.calls[c].parent;
    if (parent >= 0) call_ms[parent] += call_ms[c];
  }
  std::vector<double> forward_ms(trace.modules.size(), 0);
  for (size_t m = 0; m < forward_ms.size(); ++m) {
    for (const int32_t c : forest.by_module[m]) {
      if (forest.is_outermost[c]) forward_ms[m] += call_ms[c];
    }
  }
  return forward_ms;
}

// By module.
std::vector<double> BackwardMs(const Trace& trace, const CallForest& forest) {
  std::vector<double> ms_before(trace.operators.size() + 1, 0);
  for (size_t k = 0; k < trace.operators.size(); ++k) {
    ms_before[k + 1] = ms_before[k] + trace.operators[k].runtime_ms;
  }
  std::vector<double> backward_ms(trace.modules.size(), 0);
  for (size_t m = 0; m < backward_ms.size(); ++m) {
    std::vector<int32_t> calls = forest.by_module[m];
    std::ranges::sort(calls, {},
                      [&](int32_t c) { return trace.calls[c].backward_start; });
    int32_t counted = 0;
    for (const int32_t c : calls) {
      const TraceCall& call = trace.calls[c];
      if (call.backward_start == kNever || call.backward_end <= counted) {
        continue;
      }
      backward_ms[m] += ms_before[call.backward_end] -
                        ms_before[std::max(call.backward_start, counted)];
      counted = call.backward_end;
    }
  }
  return backward_ms;
}

// The tree of modules, those that are never called included.
struct ModuleForest {
  std::vector<int32_t> parent;       // -1: none
  std::vector<int32_t> subtree_end;  // after the last module below
};

ModuleForest MakeModuleForest(const Trace& trace) {
  const auto count = static_cast<int32_t>(trace.modules.size());
  ModuleForest forest = {.parent = std::vector<int32_t>(count, -1),
                         .subtree_end = std::vector<int32_t>(count, count)};
  const auto holds = [&](int32_t module, int32_t below) {
    if (trace.modules[module].IsSegment()) {
      return below < trace.modules[module].run_end;
    }
    const std::string_view fqn = trace.modules[module].fqn;
    return std::string_view(trace.modules[below].fqn).starts_with(fqn) &&
           trace.modules[below].fqn[fqn.size()] == '.';
  };
  std::vector<int32_t> open;
  for (int32_t m = 0; m < count; ++m) {
    while (!open.empty() && !holds(open.back(), m)) {
      forest.subtree_end[open.back()] = m;
      open.pop_back();
    }
    if (!open.empty()) forest.parent[m] = open.back();
    open.push_back(m);
  }
  return forest;
}

// The bytes of a module's parameters or buffers with those below it, each once.
std::vector<int64_t> StateBytes(const Trace& trace, const ModuleForest& forest,
                                std::vector<int32_t> TraceModule::*storages) {
  std::vector<int64_t> sums(trace.modules.size(), 0);
  std::vector<int32_t> last(trace.storages.size(), -1);
  for (size_t m = 0; m < sums.size(); ++m) {
    for (const int32_t s : trace.modules[m].*storages) {
      const int64_t bytes = AllocatedBytes(trace.storages[s].bytes);
      sums[m] += bytes;
      // Not twice where the modules that have it meet.
      int32_t meeting = last[s];
      while (meeting >= 0 &&
             forest.subtree_end[meeting] <= static_cast<int32_t>(m)) {
        meeting = forest.parent[meeting];
      }
      if (meeting >= 0) sums[meeting] -= bytes;
      last[s] = static_cast<int32_t>(m);
    }
  }
  for (size_t m = sums.size(); m-- > 0;) {
    if (forest.parent[m] >= 0) sums[forest.parent[m]] += sums[m];
  }
  return sums;
}

Measured MeasuredStep(const Trace& trace, const MemoryTimeline& timeline) {
  Measured measured;
  const auto end = static_cast<int32_t>(trace.operators.size());
  if (end > 0) measured.peak_bytes = timeline.Peak(0, end)[kTotal];
  if (end > trace.backward_end) {
    measured.opt_step_peak_categories = timeline.Peak(trace.backward_end, end);
    measured.opt_step_peak_bytes = (*measured.opt_step_peak_categories)[kTotal];
  }
  std::array<int64_t, kStorageCategories> before_step = {};
  for (const TraceStorage& storage : trace.storages) {
    if (storage.born >= 0) continue;
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
                                   const std::vector<int32_t>& calls) {
  std::vector<std::string> fqns;
  std::vector<char> is_named(trace.modules.size(), 0);
  for (const int32_t c : calls) {
    const int32_t m = trace.calls[c].module;
    if (!std::exchange(is_named[m], 1)) fqns.push_back(trace.modules[m].fqn);
  }
  return fqns;
}

ModuleOrders Orders(const Trace& trace, const CallForest& forest) {
  std::vector<int32_t> pre(trace.calls.size());
  std::iota(pre.begin(), pre.end(), 0);
  std::vector<int32_t> firsts;
  for (const int32_t c : forest.post_order) {
    if (forest.by_module[trace.calls[c].module].front() == c) {
      firsts.push_back(c);
    }
  }
  // At equal times backward enters a call before the calls inside it, and
  // leaves it after them, the last one first.
  std::vector<int32_t> bw_pre(forest.post_order.rbegin(),
                              forest.post_order.rend());
  std::ranges::stable_sort(
      bw_pre, {}, [&](int32_t c) { return trace.calls[c].backward_start; });
  std::vector<int32_t> bw_post(pre.rbegin(), pre.rend());
  std::ranges::stable_sort(
      bw_post, {}, [&](int32_t c) { return trace.calls[c].backward_end; });
  const auto has_no_backward = [&](int32_t c) {
    return trace.calls[c].backward_start == kNever;
  };
  std::erase_if(bw_pre, has_no_backward);
  std::erase_if(bw_post, has_no_backward);
  return {.fw_pre = ModulesOf(trace, pre),
          .bw_pre = ModulesOf(trace, bw_pre),
          .fw_post = ModulesOf(trace, firsts),
          .bw_post = ModulesOf(trace, bw_post)};
}

// Snapshots at the ends of a call. What happens between two operators has no
// order in a trace; Aggregate's contract says what counts.
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
      std::vector<int32_t> held = call.inputs;
      held.insert(held.end(), call.outputs.begin(), call.outputs.end());
      return WithFreed(snapshot, held, call.end, /*born_since=*/-1);
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
  MemorySnapshot PeakSince(const MemorySnapshot& start, int32_t begin,
                           int32_t end) const {
    if (begin == end) return start;
    const MemorySnapshot& peak = timeline_.Peak(begin, end);
    return peak[kTotal] > start[kTotal] ? peak : start;
  }

 private:
  // Adds the storages that are freed at `time` and were born in
  // [born_since, time).
  MemorySnapshot WithFreed(MemorySnapshot snapshot,
                           const std::vector<int32_t>& storages, int32_t time,
                           int32_t born_since) const {
    for (const int32_t s : Distinct(storages)) {
      const TraceStorage& storage = trace_.storages[s];
      if (storage.freed == time && storage.born >= born_since &&
          storage.born < time) {
        Add(snapshot, timeline_.CategoryOf(storage),
            AllocatedBytes(storage.bytes));
      }
    }
    return snapshot;
  }

  const Trace& trace_;
  const MemoryTimeline& timeline_;
};

int64_t HeldBytes(const CallFacts& facts, int32_t module) {
  std::vector<int32_t> held;
  for (const int32_t c : facts.forest.by_module[module]) {
    const int32_t first_request = facts.saves.first_request[c];
    if (first_request == kNever) continue;
    for (const int32_t s : facts.trace.calls[c].inputs) {
      if (facts.trace.storages[s].freed < first_request) held.push_back(s);
    }
  }
  return BytesOf(facts.trace, held);
}

// A module with all that its calls say of memory.
Module MemoryOfModule(const CallFacts& facts, const CallSnapshots& snapshots,
                      int32_t m) {
  Module module;
  ModuleSnapshots& snap = module.snap.emplace();
  for (const int32_t c : facts.forest.by_module[m]) {
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
  for (int32_t m = 0; m < std::ssize(trace.modules); ++m) {
    if (facts.forest.by_module[m].empty()) continue;
    Module& module = modules.emplace_back(MemoryOfModule(facts, snapshots, m));
    module.fqn = trace.modules[m].fqn;
    module.is_segment = trace.modules[m].IsSegment();
    const int32_t parent = forest.parent[m];
    if (parent >= 0 && trace.modules[parent].IsSegment()) {
      module.segment = trace.modules[parent].fqn;
    }
    module.is_leaf = forest.subtree_end[m] == m + 1;
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
