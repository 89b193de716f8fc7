#include "problems/language/changed_step.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/segments.h"
#include "problems/language/module_parts.h"

namespace acplan::problems {

using graph::ModuleId;
using graph::ModuleRun;
using graph::StorageId;
using graph::Time;
using graph::Trace;

namespace {

std::string_view ParentOf(std::string_view fqn) {
  return fqn.substr(0, fqn.rfind('.'));
}

// Returns the runs of `length` blocks of each parent, of which the last may be shorter.
std::vector<ModuleRun> RunsOf(const Trace& trace,
                              const std::vector<ModuleId>& blocks,
                              int32_t length) {
  std::vector<ModuleRun> runs;
  for (size_t first = 0; first < blocks.size();) {
    const std::string_view parent = ParentOf(trace.modules[blocks[first]].fqn);
    size_t last = first;
    while (last + 1 < blocks.size() &&
           last + 1 < first + static_cast<size_t>(length) &&
           ParentOf(trace.modules[blocks[last + 1]].fqn) == parent) {
      ++last;
    }
    if (last > first) runs.push_back({blocks[first], blocks[last]});
    first = last + 1;
  }
  return runs;
}

// Returns when the gradient arrives of what the module next to a call makes of the call's
// results: Megatron-Core makes them again then.
Time GradientOfReader(const Trace& trace, graph::CallId c,
                      const std::set<StorageId>& results) {
  const graph::TraceCall& call = trace.calls[c];
  for (graph::CallId other = Next(c); other < trace.calls.end_id();
       other = Next(other)) {
    const graph::TraceCall& reader = trace.calls[other];
    if (reader.parent != call.parent || reader.start < call.end) continue;
    const bool reads = std::ranges::any_of(
        reader.inputs,
        [&](const StorageId storage) { return results.contains(storage); });
    if (reads) return reader.backward_start;
  }
  return graph::kNever;
}

// Adds a copy of a result, which the module keeps from when it makes the result again until
// its own backward pass is over.
void AddCopy(Trace& trace, const graph::SavedTensor& result,
             const graph::TraceCall& call) {
  const StorageId copy = trace.storages.end_id();
  graph::TraceStorage storage = trace.storages[result.storage];
  storage.scope_end = call.end;
  storage.freed = call.backward_end;
  trace.storages.push_back(storage);
  graph::TraceOperator& maker = trace.operators[storage.born];
  maker.creates.push_back(copy);
  maker.outputs.push_back(copy);
  graph::SavedTensor saved = result;
  saved.storage = copy;
  saved.tensor = graph::kNone;
  saved.local_end = saved.released = call.backward_end;
  trace.saved.push_back(saved);
}

// Lets no call of these modules after a call hold what that call returned, and returns when
// the last of those that are given it lets go of what is made again of it; 0 if there are
// none.
Time TakeFromReaders(Trace& trace, graph::CallId c,
                     const std::set<StorageId>& results,
                     const std::vector<ModuleId>& readers) {
  Time end = 0;
  for (const graph::CallId other :
       graph::IdRange(Next(c), trace.calls.end_id())) {
    graph::TraceCall& reader = trace.calls[other];
    if (!std::ranges::binary_search(readers, reader.module)) continue;
    const size_t taken_count = std::erase_if(
        reader.inputs,
        [&](const StorageId storage) { return results.contains(storage); });
    if (taken_count > 0) end = std::max(end, reader.backward_end);
  }
  return end;
}

// Counts what autograd saves of the results of these parts as saved by their modules.
// `readers`: further units.
void DiscardResults(Trace& trace, const std::vector<ModuleId>& modules,
                    const std::vector<ModuleId>& readers) {
  for (const graph::CallId c : trace.calls.ids()) {
    const graph::TraceCall& call = trace.calls[c];
    if (call.no_grad || !std::ranges::binary_search(modules, call.module)) {
      continue;
    }
    std::set<StorageId> results;
    for (const StorageId storage : call.outputs) {
      if (!trace.storages[storage].IsOlderThan(call.start)) {
        results.insert(storage);
      }
    }
    const Time rerun_time = GradientOfReader(trace, c, results);
    const bool has_times =
        rerun_time != graph::kNever && call.backward_end != graph::kNever;
    const Time readers_end = TakeFromReaders(trace, c, results, readers);
    std::set<StorageId> copied;
    std::vector<graph::SavedTensor> first_of_each;
    for (graph::SavedTensor& saved : trace.saved) {
      if (saved.packed < call.end || !results.contains(saved.storage)) continue;
      saved.packed = call.end;
      saved.call = c;
      saved.unpacked = std::min(saved.unpacked, rerun_time);
      // Autograd holds the tensor itself.
      saved.local_end = std::max(HeldByAutogradUntil(saved), readers_end);
      saved.released = std::max(saved.released, readers_end);
      if (has_times && copied.insert(saved.storage).second) {
        first_of_each.push_back(saved);
      }
    }
    for (const graph::SavedTensor& saved : first_of_each) {
      AddCopy(trace, saved, call);
    }
  }
  std::ranges::stable_sort(trace.saved, {}, &graph::SavedTensor::packed);
}

// Gives each of these modules that is a leaf a module inside, which is never called: plans
// have no leaves among their units.
void AddInnerModules(Trace& trace, const std::vector<ModuleId>& modules) {
  graph::IndexedVector<ModuleId, graph::TraceModule> all;
  graph::IndexedVector<ModuleId, ModuleId> new_ids;
  for (const ModuleId module : trace.modules.ids()) {
    new_ids.push_back(all.end_id());
    all.push_back(trace.modules[module]);
    const bool is_leaf = !HasChildren(trace, module);
    if (!is_leaf || !std::ranges::binary_search(modules, module)) continue;
    all.push_back({.fqn = trace.modules[module].fqn + ".result",
                   .class_name = "Result",
                   .parameters = {},
                   .buffers = {}});
  }
  trace.modules = std::move(all);
  for (graph::TraceCall& call : trace.calls) {
    call.module = new_ids[call.module];
  }
}

std::vector<ModuleId> SameModules(const Trace& from,
                                  const std::vector<ModuleId>& modules,
                                  const Trace& to) {
  const graph::ModuleNames names(to);
  std::vector<ModuleId> same;
  for (const ModuleId module : modules) {
    same.push_back(names.Find(from.modules[module].fqn));
  }
  return same;
}

}  // namespace

StepChange ChangeOf(const BlockChoice& blocks) {
  StepChange change;
  if (blocks.kind == BlockKind::kRuns) change.run_length = blocks.period;
  if (blocks.kind != BlockKind::kParts) return change;
  for (const ModulePart& part : ModuleParts()) {
    const bool is_chosen =
        std::ranges::find(blocks.parts, part.name) != blocks.parts.end();
    if (!is_chosen) continue;
    std::vector<std::string>& names =
        part.discards_output ? change.discarded : change.readers;
    names.emplace_back(part.name);
  }
  if (change.discarded.empty()) change.readers.clear();
  std::ranges::sort(change.discarded);
  std::ranges::sort(change.readers);
  return change;
}

ChangedStep::ChangedStep(Trace changed_trace, const PlanningProblem& plain,
                         const std::vector<ModuleId>& plain_blocks)
    : trace(std::move(changed_trace)),
      profile(graph::Aggregate(trace)),
      tree(profile),
      problem(BuildPlanningProblem(profile, tree, plain.options, &trace)),
      blocks(SameModules(*plain.trace, plain_blocks, trace)) {}

std::optional<Trace> WithChange(const Trace& trace,
                                const std::vector<ModuleId>& blocks,
                                const StepChange& change) {
  if (change.run_length > 1) {
    std::vector<ModuleRun> runs = RunsOf(trace, blocks, change.run_length);
    if (runs.empty()) return std::nullopt;
    try {
      return graph::WithSegments(trace, std::move(runs));
    } catch (const InputError&) {
      return std::nullopt;
    }
  }
  Trace changed = trace;
  const std::vector<ModuleId> modules =
      ModulesOfParts(trace, blocks, change.discarded);
  DiscardResults(changed, modules,
                 ModulesOfParts(trace, blocks, change.readers));
  AddInnerModules(changed, modules);
  return changed;
}

}  // namespace acplan::problems
