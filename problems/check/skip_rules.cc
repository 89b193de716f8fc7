#include "problems/check/skip_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
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

using graph::kNever;
using graph::OperatorDecision;
using graph::Trace;
using graph::TraceCall;
using graph::TraceOperator;

bool Contains(const std::vector<int32_t>& values, int32_t value) {
  return std::ranges::find(values, value) != values.end();
}

class CallNeeds {
 public:
  CallNeeds(const Trace& trace, const graph::CheckpointedModule& unit,
            const TraceCall& call, const std::vector<int32_t>& saved)
      : trace_(trace), unit_(unit), call_(call), saved_(saved) {}

  std::optional<std::string> FirstUnmet() {
    const int32_t stop = NeedsOfBackward();
    for (int32_t op = call_.end; op-- > call_.start;) {
      auto unmet = Visit(op, stop);
      if (unmet) {
        return fmt::format("{}: {}", trace_.modules[call_.module].fqn, *unmet);
      }
    }
    return std::nullopt;
  }

 private:
  OperatorDecision DecisionOf(int32_t op) const {
    return unit_.decisions[op - call_.start];
  }

  // Returns whether the policy keeps a tensor, even if its storage is lost.
  bool IsKept(int32_t tensor) const {
    const int32_t op = tensor < 0 ? -1 : trace_.tensors[tensor].op;
    if (op < call_.start || op >= call_.end) return false;
    if (!graph::Keeps(DecisionOf(op))) return false;
    const auto results = unit_.kept_results.find(op - call_.start);
    if (results == unit_.kept_results.end()) return true;
    return std::ranges::any_of(results->second, [&](int32_t result) {
      return trace_.operators[op].results[result] == tensor;
    });
  }

  // Returns the operator before which the recomputation stops; 0 if it does not
  // begin.
  int32_t NeedsOfBackward() {
    int32_t stop = 0;
    bool begins = false;
    for (const int32_t k : saved_) {
      const graph::SavedTensor& saved = trace_.saved[k];
      stop = std::max(stop, saved.packed);
      if (saved.unpacked == kNever) continue;
      begins = true;
      if (IsKept(saved.tensor)) continue;
      needed_storages_.insert(saved.storage);
    }
    return begins ? stop : 0;
  }

  std::optional<std::string> Visit(int32_t op, int32_t stop) {
    const TraceOperator& now = trace_.operators[op];
    const auto say = [&](std::string_view what) {
      return fmt::format("operator {} '{}' {}", op - call_.start,
                         trace_.operator_names[now.name], what);
    };
    switch (DecisionOf(op)) {
      case OperatorDecision::kRecompute:
        Make(now);
        if (!now.view && op < stop) {
          needed_storages_.insert(now.reads.begin(), now.reads.end());
          needed_storages_.insert(now.mutates.begin(), now.mutates.end());
        }
        return std::nullopt;
      case OperatorDecision::kSave:
      case OperatorDecision::kOffload:
        if (now.opaque && op < stop) return say("is kept and cannot be");
        for (const int32_t s : now.creates) {
          if (op < stop && needed_storages_.contains(s) &&
              !IsStorageKept(op, s)) {
            return say("does not keep a result that is needed");
          }
        }
        Make(now);
        return std::nullopt;
      case OperatorDecision::kSkip:
        break;
    }
    if (op >= stop) return std::nullopt;
    if (now.outputs.empty() && now.mutates.empty()) {
      return say("is skipped and returns no tensor");
    }
    const auto is_needed = [&](int32_t s) {
      return needed_storages_.contains(s);
    };
    if (std::ranges::any_of(now.creates, is_needed)) {
      return say("is skipped and makes what is needed");
    }
    for (const int32_t s : now.mutates) {
      if (is_needed(s) && trace_.storages[s].born >= call_.start) {
        return say("is skipped and writes to what is needed");
      }
      // Nothing in the call depends on the contents of a counter.
      const bool is_counter =
          trace_.storages[s].born < call_.start && IsCounter(trace_, call_, s);
      if (!is_counter && IsKeptBefore(op, s)) {
        return say("is skipped and writes to what is kept");
      }
    }
    return std::nullopt;
  }

  bool IsStorageKept(int32_t op, int32_t storage) const {
    const TraceOperator& now = trace_.operators[op];
    if (!unit_.kept_results.contains(op - call_.start)) {
      return Contains(now.outputs, storage);
    }
    return std::ranges::any_of(now.results, [&](int32_t t) {
      return trace_.tensors[t].storage == storage && IsKept(t);
    });
  }

  // Returns whether an operator of the call before this one keeps a storage.
  bool IsKeptBefore(int32_t op, int32_t storage) const {
    for (int32_t k = call_.start; k < op; ++k) {
      const bool keeps = graph::Keeps(DecisionOf(k)) &&
                         Contains(trace_.operators[k].outputs, storage) &&
                         IsStorageKept(k, storage);
      if (keeps) return true;
    }
    return false;
  }

  void Make(const TraceOperator& op) {
    for (const int32_t s : op.creates) needed_storages_.erase(s);
  }

  const Trace& trace_;
  const graph::CheckpointedModule& unit_;
  const TraceCall& call_;
  const std::vector<int32_t>& saved_;  // indices into Trace::saved, in the call
  std::set<int32_t> needed_storages_;
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
  for (const int32_t c : index.calls_of[unit.module]) {
    CallNeeds needs(trace, unit, trace.calls[c], index.saved_in[c]);
    if (auto unmet = needs.FirstUnmet()) return unmet;
  }
  return std::nullopt;
}

}  // namespace acplan::problems
