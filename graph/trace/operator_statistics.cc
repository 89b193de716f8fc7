#include "graph/trace/operator_statistics.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/trace/allocation.h"

// A module's operators are those of one of its calls; operator i is the i-th of each
// call. A decision of a policy holds in all calls, so a rule that one call
// asks for is one of the module, and run-times and bytes are sums over the
// calls.
//
// Writes in place. When a call runs again, a result that the policy saved is
// there as it was in the end, so whatever writes to it, and whatever reads it
// before the last write, must be saved with it or run again with it: such
// operators are tied to the one that created the result. A result that
// something outside of the call writes to before the call runs again cannot be
// saved at all, since nothing could be tied to that.
//
// State. An operator that reads what was there before the call (a buffer, an
// attribute, a global tensor) would read something else when the call runs
// again if anything has written to it since. So it must be saved, and it is
// skipped where nothing needs its results.

namespace acplan::graph {
namespace {

// "aten.mm.default" -> "mm".
std::string_view ShortName(std::string_view name) {
  const size_t begin = name.find('.');
  const size_t end = name.rfind('.');
  return begin < end ? name.substr(begin + 1, end - begin - 1) : name;
}

bool IsAmong(const std::vector<StorageId>& ascending, StorageId value) {
  return std::ranges::binary_search(ascending, value);
}

// Operators by their place in the call.
struct InPlaceRules {
  std::set<std::pair<int, int>> ties;  // an operator, its parent
  std::set<int> unsavable;
};

class InPlaceRuleFinder {
 public:
  explicit InPlaceRuleFinder(const CallFacts& facts) : facts_(facts) {}

  InPlaceRules Find(const std::vector<CallId>& calls) && {
    for (const CallId c : calls) {
      const TraceCall& call = facts_.trace.calls[c];
      for (const OperatorId k : call.Operators()) {
        const TraceOperator& op = facts_.trace.operators[k];
        const int place = call.PlaceOf(k);
        if (ReadsStale(facts_, c, k)) rules_.ties.emplace(place, place);
        if (op.opaque) rules_.unsavable.insert(place);
        for (const StorageId s : op.mutates) {
          if (IsAmong(op.outputs, s)) AddWriter(call, k, s);
        }
        for (const StorageId s : op.creates) {
          if (IsAmong(op.outputs, s)) AddCreator(c, k, s);
        }
      }
    }
    return std::move(rules_);
  }

 private:
  // Operator `k` returns the storage that it writes to.
  void AddWriter(const TraceCall& call, OperatorId k, StorageId storage) {
    const OperatorId born = facts_.trace.storages[storage].born;
    const bool is_of_call = StartOf(born) >= call.start;
    rules_.ties.emplace(call.PlaceOf(k), call.PlaceOf(is_of_call ? born : k));
    if (is_of_call) return;
    // It is tied to what reads the storage before the last write of the call.
    const InPlaceAccesses& accesses = facts_.writes.at(storage);
    const OperatorId last = *std::prev(
        std::ranges::lower_bound(accesses.writers, OperatorAt(call.end)));
    for (const OperatorId reader : accesses.readers) {
      if (reader > k && reader < last) {
        rules_.ties.emplace(call.PlaceOf(reader), call.PlaceOf(k));
      }
    }
  }

  // Operator `k` of call `c` creates the storage and returns it.
  void AddCreator(CallId c, OperatorId k, StorageId storage) {
    const auto accesses = facts_.writes.find(storage);
    if (accesses == facts_.writes.end()) return;
    const auto& [writers, readers] = accesses->second;
    const TraceCall& call = facts_.trace.calls[c];
    OperatorId last = k;
    for (const OperatorId writer : writers) {
      if (StartOf(writer) < call.end) {
        rules_.ties.emplace(call.PlaceOf(writer), call.PlaceOf(k));
        last = writer;
      } else if (StartOf(writer) < facts_.saves.first_request[c]) {
        rules_.unsavable.insert(call.PlaceOf(k));
      }
    }
    for (const OperatorId reader : readers) {
      if (reader < last) {
        rules_.ties.emplace(call.PlaceOf(reader), call.PlaceOf(k));
      }
    }
  }

  const CallFacts& facts_;
  InPlaceRules rules_;
};

// Returns the bytes that saving what operator `k` of call `c` returns would add:
// `results` of the call that outlive the forward pass are there anyway. An operator
// that never runs again is not worth saving unless that is free all the time.
int64_t SavedBytes(const CallFacts& facts, CallId c, OperatorId k,
                   const std::vector<StorageId>& results) {
  const TraceOperator& op = facts.trace.operators[k];
  const Time kept_until = StartOf(k) < RerunStop(facts, c)
                              ? facts.trace.forward_end + 1
                              : facts.saves.first_request[c];
  int64_t bytes = 0;
  for (const StorageId s : op.creates) {
    const TraceStorage& storage = facts.trace.storages[s];
    if (IsAmong(op.outputs, s) &&
        (storage.freed < kept_until || !IsAmong(results, s))) {
      bytes += AllocatedBytes(storage.bytes);
    }
  }
  return bytes;
}

// Returns whether autograd has saved all that an operator returns when call `c`
// ends.
bool IsSavedByAutograd(const CallFacts& facts, CallId c,
                       const TraceOperator& op) {
  const Time end = facts.trace.calls[c].end;
  const auto is_saved = [&](StorageId s) {
    const SavedId first = facts.saves.first_by_storage[s];
    if (first == kNone) return false;
    const SavedTensor& saved = facts.trace.saved[first];
    return saved.packed < end || (saved.packed == end && saved.call >= c &&
                                  saved.call < facts.forest.subtree_end[c]);
  };
  return !op.outputs.empty() && std::ranges::all_of(op.outputs, is_saved);
}

}  // namespace

std::optional<SacStatistics> OperatorStatistics(const CallFacts& facts,
                                                ModuleId module) {
  const Trace& trace = facts.trace;
  if (FindUnitRefusal(facts, module)) return std::nullopt;
  std::vector<CallId> calls = facts.forest.by_module[module];
  std::erase_if(calls, [&](CallId c) { return trace.calls[c].no_grad; });
  const TraceCall& first = trace.calls[calls.front()];
  const InPlaceRules rules = InPlaceRuleFinder(facts).Find(calls);

  SacStatistics sac;
  sac.inplace_ops.assign(rules.ties.begin(), rules.ties.end());
  const auto count = static_cast<size_t>(first.OperatorCount());
  sac.func_names.reserve(count);
  sac.runtimes.assign(count, 0);
  sac.memory.assign(count, 0);
  for (const OperatorId k : first.Operators()) {
    const TraceOperator& op = trace.operators[k];
    const int i = first.PlaceOf(k);
    sac.func_names.emplace_back(ShortName(trace.operator_names[op.name]));
    if (op.view || rules.unsavable.contains(i)) sac.view_like_ops.push_back(i);
    if (op.random) sac.rand_ops.push_back(i);
    if (IsSavedByAutograd(facts, calls.front(), op)) {
      sac.saved_autograd_ops.push_back(i);
    }
  }
  for (const CallId c : calls) {
    const TraceCall& call = trace.calls[c];
    std::vector<StorageId> results = call.outputs;
    std::ranges::sort(results);
    for (size_t i = 0; i < count; ++i) {
      const OperatorId k = call.AtPlace(static_cast<int32_t>(i));
      if (StartOf(k) < RerunStop(facts, c)) {
        sac.runtimes[i] += trace.operators[k].runtime_ms;
      }
      sac.memory[i] += SavedBytes(facts, c, k, results);
    }
    if (call.arguments.empty()) sac.force_store_random = true;
  }
  return sac;
}

}  // namespace acplan::graph
