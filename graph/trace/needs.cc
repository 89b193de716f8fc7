#include "graph/trace/needs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <unordered_set>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/call_facts.h"

// Finds by one walk over the operators of a unit, from the last to the first,
// which of them must run again if some are saved.
//
// The walk knows which storages are needed: those whose contents, as they are after the
// operator at hand, something later reads. It begins with what backward asks for; what
// a module keeps as an attribute is there from the forward pass, whatever a
// recomputation makes. An operator that makes or writes to a needed storage is needed
// itself. If it is saved, it keeps what is needed of its results. Otherwise it runs
// again, and then needs all that it reads. Nobody can need what an operator creates
// before it; a storage that it writes to in place stays needed, since PyTorch wants
// those that write to a saved result to be saved with it, and those that run again read
// it. So does the base of a view: which tensor of a storage an operator reads the trace
// does not tell.
//
// Each decision is forced by those after it: a policy that saves only these
// operators and skips one that the walk makes run again lacks something that is
// needed. So the walk runs again as few as can be. The calls of a module share
// its policy, so they are walked together.
//
// An operator that neither returns nor writes to a tensor makes something else,
// such as a Python number, for which nothing can stand in. It runs again
// wherever a recomputation gets to it.

namespace acplan::graph {
namespace {

bool ReturnsNoTensor(const TraceOperator& op) {
  return op.outputs.empty() && op.mutates.empty();
}

}  // namespace

class NeedDrivenPolicies::Walk {
 public:
  Walk(const Trace& trace, const std::vector<Call>& calls)
      : trace_(trace), calls_(calls) {
    for (const Call& call : calls) {
      needed_storages_.emplace_back(call.storages.begin(), call.storages.end());
    }
  }

  // Decides about the operators at a place of the calls, after all later ones.
  OperatorDecision Decide(int32_t place, bool is_saved) {
    const bool is_needed =
        IsNeeded(place, is_saved) || (is_saved && WritesToWhatIsThere(place));
    for (size_t c = 0; c < calls_.size(); ++c) {
      const OperatorId op = calls_[c].call->AtPlace(place);
      for (const StorageId s : trace_.operators[op].creates) {
        needed_storages_[c].erase(s);
      }
      if (!is_needed || is_saved || StartOf(op) >= calls_[c].stop) continue;
      const TraceOperator& now = trace_.operators[op];
      needed_storages_[c].insert(now.reads.begin(), now.reads.end());
      needed_storages_[c].insert(now.mutates.begin(), now.mutates.end());
    }
    return is_needed ? SaveOrRecompute(is_saved) : OperatorDecision::kSkip;
  }

  // Returns the results of a saved operator that are needed, before Decide; nothing if
  // all are to be kept.
  std::optional<std::vector<int32_t>> KeptResults(int32_t place) const {
    const size_t count = ResultsAt(0, place).size();
    std::vector<Flag> is_kept(count, false);
    for (size_t c = 0; c < calls_.size(); ++c) {
      const TraceOperator& op = OperatorAt(c, place);
      if (op.results.size() != count || !op.mutates.empty()) {
        return std::nullopt;
      }
      for (const StorageId s : op.outputs) {
        bool is_result = false;
        for (size_t r = 0; r < count; ++r) {
          if (trace_.tensors[op.results[r]].storage != s) continue;
          is_result = true;
          if (IsNeeded(c, s)) is_kept[r] = true;
        }
        // An output that is no tensor of the trace cannot be kept by its place.
        if (!is_result && IsNeeded(c, s)) return std::nullopt;
      }
    }
    std::vector<int32_t> kept_results;
    for (size_t r = 0; r < count; ++r) {
      if (is_kept[r]) kept_results.push_back(static_cast<int32_t>(r));
    }
    if (kept_results.size() == count) return std::nullopt;
    return kept_results;
  }

 private:
  const TraceOperator& OperatorAt(size_t c, int32_t place) const {
    return trace_.operators[calls_[c].call->AtPlace(place)];
  }

  const std::vector<TensorId>& ResultsAt(size_t c, int32_t place) const {
    return OperatorAt(c, place).results;
  }

  bool IsNeeded(size_t c, StorageId storage) const {
    return needed_storages_[c].contains(storage);
  }

  // Returns whether an operator writes to a storage that was there before the call: it
  // holds what the forward pass wrote to it.
  bool WritesToWhatIsThere(size_t c, const TraceOperator& op,
                           StorageId storage) const {
    return trace_.storages[storage].IsOlderThan(calls_[c].call->start) &&
           std::ranges::find(op.mutates, storage) != op.mutates.end();
  }

  // A saved view of what was there wants its writers to be saved.
  bool WritesToWhatIsThere(int32_t place) const {
    for (size_t c = 0; c < calls_.size(); ++c) {
      const TraceOperator& op = OperatorAt(c, place);
      const auto is_there = [&](StorageId s) {
        return WritesToWhatIsThere(c, op, s);
      };
      if (std::ranges::any_of(op.mutates, is_there)) return true;
    }
    return false;
  }

  bool IsNeeded(int32_t place, bool is_saved) const {
    for (size_t c = 0; c < calls_.size(); ++c) {
      const TraceOperator& op = OperatorAt(c, place);
      const auto is_wanted = [&](StorageId s) {
        return IsNeeded(c, s) && !WritesToWhatIsThere(c, op, s);
      };
      const bool is_reached = calls_[c].call->start + place < calls_[c].stop;
      if (std::ranges::any_of(op.outputs, is_wanted) ||
          std::ranges::any_of(op.mutates, is_wanted) ||
          (!is_saved && std::ranges::any_of(op.creates, is_wanted)) ||
          (is_reached && ReturnsNoTensor(op))) {
        return true;
      }
    }
    return false;
  }

  const Trace& trace_;
  const std::vector<Call>& calls_;
  // Indexed by the place of a call: the storages that the call needs.
  std::vector<std::unordered_set<StorageId>> needed_storages_;
};

NeedDrivenPolicies::NeedDrivenPolicies(const Trace& trace)
    : trace_(&trace), calls_of_(trace.modules.size()) {
  const CallForest forest = MakeCallForest(trace);
  for (const CallId c : trace.calls.ids()) {
    if (trace.calls[c].no_grad) continue;
    calls_of_[trace.calls[c].module].push_back(
        NeedsOf(c, forest.subtree_end[c]));
  }
}

NeedDrivenPolicies::Call NeedDrivenPolicies::NeedsOf(CallId call,
                                                     CallId subtree_end) const {
  const TraceCall& now = trace_->calls[call];
  Call result = {.call = &now};
  bool runs_again = false;
  for (auto saved = std::ranges::lower_bound(trace_->saved, now.start, {},
                                             &SavedTensor::packed);
       saved != trace_->saved.end() && saved->packed <= now.end; ++saved) {
    if (saved->call < call || saved->call >= subtree_end) continue;
    result.stop = std::max(result.stop, saved->packed);
    if (saved->unpacked == kNever) continue;
    runs_again = true;
    result.storages.push_back(saved->storage);
  }
  if (!runs_again) result.stop = 0;
  return result;
}

CheckpointedModule NeedDrivenPolicies::PolicyFor(
    ModuleId module, const std::vector<Flag>& saves) const {
  const std::vector<Call>& calls = calls_of_[module];
  for (const Call& call : calls) {
    const auto length = static_cast<size_t>(call.call->OperatorCount());
    if (saves.size() == length) continue;
    throw InputError(
        fmt::format("module '{}': expected a decision for each of the {} "
                    "operators of a call, found {}",
                    trace_->modules[module].fqn, length, saves.size()));
  }
  CheckpointedModule unit = {.module = module};
  unit.decisions.assign(saves.size(), OperatorDecision::kSkip);
  if (calls.empty()) return unit;
  Walk walk(*trace_, calls);
  for (auto place = static_cast<int32_t>(saves.size()) - 1; place >= 0;
       --place) {
    const bool is_saved = saves[place];
    std::optional<std::vector<int32_t>> kept_results;
    if (is_saved) kept_results = walk.KeptResults(place);
    unit.decisions[place] = walk.Decide(place, is_saved);
    const bool keeps_some =
        unit.decisions[place] == OperatorDecision::kSave && kept_results;
    if (keeps_some) unit.kept_results.emplace(place, std::move(*kept_results));
  }
  return unit;
}

}  // namespace acplan::graph
