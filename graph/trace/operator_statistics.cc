#include "graph/trace/operator_statistics.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/trace/allocation.h"

// A module's operators are those of one of its calls; operator i is the i-th of
// each call. What a policy decides holds in all calls, so a rule that one call
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

bool IsAmong(const std::vector<int32_t>& ascending, int32_t value) {
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

  InPlaceRules Find(const std::vector<int32_t>& calls) && {
    for (const int32_t c : calls) {
      const TraceCall& call = facts_.trace.calls[c];
      for (int32_t k = call.start; k < call.end; ++k) {
        const TraceOperator& op = facts_.trace.operators[k];
        if (ReadsStale(facts_, c, k)) {
          rules_.ties.emplace(k - call.start, k - call.start);
        }
        if (op.opaque) rules_.unsavable.insert(k - call.start);
        for (const int32_t s : op.mutates) {
          if (IsAmong(op.outputs, s)) AddWriter(call, k, s);
        }
        for (const int32_t s : op.creates) {
          if (IsAmong(op.outputs, s)) AddCreator(c, k, s);
        }
      }
    }
    return std::move(rules_);
  }

 private:
  // Operator `k` returns the storage that it writes to.
  void AddWriter(const TraceCall& call, int32_t k, int32_t storage) {
    const int32_t born = facts_.trace.storages[storage].born;
    const bool is_of_call = born >= call.start;
    rules_.ties.emplace(k - call.start, (is_of_call ? born : k) - call.start);
    if (is_of_call) return;
    // It is tied to what reads the storage before the last write of the call.
    const InPlaceAccesses& accesses = facts_.writes.at(storage);
    const int32_t last =
        *std::prev(std::ranges::lower_bound(accesses.writers, call.end));
    for (const int32_t reader : accesses.readers) {
      if (reader > k && reader < last) {
        rules_.ties.emplace(reader - call.start, k - call.start);
      }
    }
  }

  // Operator `k` of call `c` creates the storage and returns it.
  void AddCreator(int32_t c, int32_t k, int32_t storage) {
    const auto found = facts_.writes.find(storage);
    if (found == facts_.writes.end()) return;
    const auto& [writers, readers] = found->second;
    const TraceCall& call = facts_.trace.calls[c];
    int32_t last = k;
    for (const int32_t writer : writers) {
      if (writer < call.end) {
        rules_.ties.emplace(writer - call.start, k - call.start);
        last = writer;
      } else if (writer < facts_.saves.first_request[c]) {
        rules_.unsavable.insert(k - call.start);
      }
    }
    for (const int32_t reader : readers) {
      if (reader < last) {
        rules_.ties.emplace(reader - call.start, k - call.start);
      }
    }
  }

  const CallFacts& facts_;
  InPlaceRules rules_;
};

// The bytes that saving what operator `k` of call `c` returns would add:
// `results` of the call that outlive the forward pass are there anyway. What
// never runs again is not worth saving unless that is free all the time.
int64_t SavedBytes(const CallFacts& facts, int32_t c, int32_t k,
                   const std::vector<int32_t>& results) {
  const TraceOperator& op = facts.trace.operators[k];
  const int32_t kept_until = k < RerunStop(facts, c)
                                 ? facts.trace.forward_end + 1
                                 : facts.saves.first_request[c];
  int64_t bytes = 0;
  for (const int32_t s : op.creates) {
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
bool IsSavedByAutograd(const CallFacts& facts, int32_t c,
                       const TraceOperator& op) {
  const int32_t end = facts.trace.calls[c].end;
  const auto is_saved = [&](int32_t s) {
    const int32_t first = facts.saves.first_by_storage[s];
    if (first < 0) return false;
    const SavedTensor& saved = facts.trace.saved[first];
    return saved.packed < end || (saved.packed == end && saved.call >= c &&
                                  saved.call < facts.forest.subtree_end[c]);
  };
  return !op.outputs.empty() && std::ranges::all_of(op.outputs, is_saved);
}

}  // namespace

std::optional<SacStatistics> OperatorStatistics(const CallFacts& facts,
                                                int32_t module) {
  const Trace& trace = facts.trace;
  if (FindUnitRefusal(facts, module)) return std::nullopt;
  std::vector<int32_t> calls = facts.forest.by_module[module];
  std::erase_if(calls, [&](int32_t c) { return trace.calls[c].no_grad; });
  const TraceCall& first = trace.calls[calls.front()];
  const InPlaceRules rules = InPlaceRuleFinder(facts).Find(calls);

  SacStatistics sac;
  sac.inplace_ops.assign(rules.ties.begin(), rules.ties.end());
  const auto count = static_cast<size_t>(first.end - first.start);
  sac.func_names.reserve(count);
  sac.runtimes.assign(count, 0);
  sac.memory.assign(count, 0);
  for (int32_t k = first.start; k < first.end; ++k) {
    const TraceOperator& op = trace.operators[k];
    const int i = k - first.start;
    sac.func_names.emplace_back(ShortName(trace.operator_names[op.name]));
    if (op.view || rules.unsavable.contains(i)) sac.view_like_ops.push_back(i);
    if (op.random) sac.rand_ops.push_back(i);
    if (IsSavedByAutograd(facts, calls.front(), op)) {
      sac.saved_autograd_ops.push_back(i);
    }
  }
  for (const int32_t c : calls) {
    const TraceCall& call = trace.calls[c];
    std::vector<int32_t> results = call.outputs;
    std::ranges::sort(results);
    for (size_t i = 0; i < count; ++i) {
      const int32_t k = call.start + static_cast<int32_t>(i);
      if (k < RerunStop(facts, c)) {
        sac.runtimes[i] += trace.operators[k].runtime_ms;
      }
      sac.memory[i] += SavedBytes(facts, c, k, results);
    }
    if (call.arguments.empty()) sac.force_store_random = true;
  }
  return sac;
}

}  // namespace acplan::graph
