#include "problems/check/skip_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <ranges>
#include <set>
#include <string_view>
#include <vector>

#include "problems/check/state_rules.h"

// Walks the operators of a call backwards with the set of storages whose
// contents are needed. The walk begins with the tensors that backward asks for.
// An operator that runs again needs what it reads; an operator that makes
// something needed must run again or be kept. The simulation goes the other
// way: it follows forwards what is lost.

namespace acplan::problems {
namespace {

using graph::CallId;
using graph::kNever;
using graph::OperatorDecision;
using graph::OperatorId;
using graph::StorageId;
using graph::TensorId;
using graph::Time;
using graph::Trace;
using graph::TraceCall;
using graph::TraceOperator;

bool Contains(const std::vector<StorageId>& values, StorageId value) {
  return std::ranges::find(values, value) != values.end();
}

class CallNeeds {
 public:
  CallNeeds(const Trace& trace, const graph::CheckpointedModule& unit,
            const TraceCall& call, const std::vector<graph::SavedId>& saved)
      : trace_(trace), unit_(unit), call_(call), saved_(saved) {}

  std::optional<std::string> FirstUnmet() {
    const Time stop = NeedsOfBackward();
    for (const OperatorId op : std::views::reverse(call_.Operators())) {
      auto unmet = Visit(op, stop);
      if (unmet) {
        return fmt::format("{}: {}", trace_.modules[call_.module].fqn, *unmet);
      }
    }
    return std::nullopt;
  }

 private:
  OperatorDecision DecisionOf(graph::OperatorId op) const {
    return unit_.decisions[call_.PlaceOf(op)];
  }

  // Returns whether the policy keeps a tensor, even if its storage is lost.
  bool IsKept(graph::TensorId tensor) const {
    const OperatorId op =
        tensor == graph::kNone ? graph::kNone : trace_.tensors[tensor].op;
    if (StartOf(op) < call_.start || StartOf(op) >= call_.end) return false;
    if (!graph::Keeps(DecisionOf(op))) return false;
    const auto results = unit_.kept_results.find(call_.PlaceOf(op));
    if (results == unit_.kept_results.end()) return true;
    return std::ranges::any_of(results->second, [&](int32_t result) {
      return trace_.operators[op].results[result] == tensor;
    });
  }

  // Returns the operator before which the recomputation stops; 0 if it does not
  // begin.
  Time NeedsOfBackward() {
    Time stop = 0;
    bool begins = false;
    for (const graph::SavedId k : saved_) {
      const graph::SavedTensor& saved = trace_.saved[k];
      stop = std::max(stop, saved.packed);
      if (saved.unpacked == kNever) continue;
      begins = true;
      if (IsKept(saved.tensor)) continue;
      needed_storages_.insert(saved.storage);
    }
    return begins ? stop : 0;
  }

  std::optional<std::string> Visit(graph::OperatorId op, graph::Time stop) {
    const TraceOperator& now = trace_.operators[op];
    const auto say = [&](std::string_view what) {
      return fmt::format("operator {} '{}' {}", call_.PlaceOf(op),
                         trace_.operator_names[now.name], what);
    };
    switch (DecisionOf(op)) {
      case OperatorDecision::kRecompute:
        Make(now);
        if (!now.view && StartOf(op) < stop) {
          needed_storages_.insert(now.reads.begin(), now.reads.end());
          needed_storages_.insert(now.mutates.begin(), now.mutates.end());
        }
        return std::nullopt;
      case OperatorDecision::kSave:
      case OperatorDecision::kOffload:
        if (now.opaque && StartOf(op) < stop)
          return say("is kept, but cannot be kept");
        for (const graph::StorageId s : now.creates) {
          if (StartOf(op) < stop && needed_storages_.contains(s) &&
              !IsStorageKept(op, s)) {
            return say("does not keep a result that is needed");
          }
        }
        Make(now);
        return std::nullopt;
      case OperatorDecision::kSkip:
        break;
    }
    if (StartOf(op) >= stop) return std::nullopt;
    if (now.outputs.empty() && now.mutates.empty()) {
      return say("is skipped, but returns no tensor");
    }
    const auto is_needed = [&](graph::StorageId s) {
      return needed_storages_.contains(s);
    };
    if (std::ranges::any_of(now.creates, is_needed)) {
      return say("is skipped, but its result is needed");
    }
    for (const graph::StorageId s : now.mutates) {
      const bool is_older = trace_.storages[s].IsOlderThan(call_.start);
      if (is_needed(s) && !is_older) {
        return say("is skipped, but writes to memory that is needed");
      }
      // Nothing in the call depends on the contents of a counter.
      const bool is_counter = is_older && IsCounter(trace_, call_, s);
      if (!is_counter && IsKeptBefore(op, s)) {
        return say("is skipped, but writes to memory that is kept");
      }
    }
    return std::nullopt;
  }

  bool IsStorageKept(graph::OperatorId op, graph::StorageId storage) const {
    const TraceOperator& now = trace_.operators[op];
    if (!unit_.kept_results.contains(call_.PlaceOf(op))) {
      return Contains(now.outputs, storage);
    }
    return std::ranges::any_of(now.results, [&](graph::TensorId t) {
      return trace_.tensors[t].storage == storage && IsKept(t);
    });
  }

  // Returns whether an operator of the call before this one keeps a storage.
  bool IsKeptBefore(graph::OperatorId op, graph::StorageId storage) const {
    for (const OperatorId k : graph::IdRange(call_.AtPlace(0), op)) {
      const bool keeps = graph::Keeps(DecisionOf(k)) &&
                         Contains(trace_.operators[k].outputs, storage) &&
                         IsStorageKept(k, storage);
      if (keeps) return true;
    }
    return false;
  }

  void Make(const TraceOperator& op) {
    for (const graph::StorageId s : op.creates) needed_storages_.erase(s);
  }

  const Trace& trace_;
  const graph::CheckpointedModule& unit_;
  const TraceCall& call_;
  const std::vector<graph::SavedId>& saved_;  // in the call
  std::set<StorageId> needed_storages_;
};

}  // namespace

std::optional<std::string> BrokenSkipRule(
    const Trace& trace, const CallIndex& index,
    const graph::CheckpointedModule& unit) {
  const bool skips =
      !unit.kept_results.empty() ||
      std::ranges::find(unit.decisions, OperatorDecision::kSkip) !=
          unit.decisions.end();
  if (!skips) return std::nullopt;
  for (const graph::CallId c : index.calls_of[unit.module]) {
    CallNeeds needs(trace, unit, trace.calls[c], index.saved_in[c]);
    if (auto unmet = needs.FirstUnmet()) return unmet;
  }
  return std::nullopt;
}

}  // namespace acplan::problems
