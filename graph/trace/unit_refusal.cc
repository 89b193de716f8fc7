#include "graph/trace/unit_refusal.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

using enum UnitObstacle;

// Returns the first write after `time` and before the call runs again, or kNoOperator.
OperatorId NextWrite(const CallFacts& facts, CallId c, StorageId storage,
                     Time time) {
  const auto accesses = facts.writes.find(storage);
  if (accesses == facts.writes.end()) return kNoOperator;
  const std::vector<OperatorId>& writers = accesses->second.writers;
  const auto next = std::ranges::lower_bound(writers, OperatorAt(time));
  const bool is_since =
      next != writers.end() && StartOf(*next) < facts.saves.first_request[c];
  return is_since ? *next : kNoOperator;
}

// Returns the time up to which operators may run again.
Time LastOf(const CallFacts& facts, CallId c) {
  return std::min(facts.trace.calls[c].end, facts.saves.last_save[c]);
}

// Returns whether nothing comes of what a storage from outside of the call holds.
bool IsOfNoAccount(const CallFacts& facts, CallId c, StorageId storage) {
  return facts.saves.first_by_storage[storage] == kNone &&
         OnlyUpdates(facts.trace, facts.trace.calls[c], storage);
}

std::optional<UnitRefusal> RefusalOfCall(const CallFacts& facts, CallId c) {
  const Trace& trace = facts.trace;
  const TraceCall& call = trace.calls[c];
  if (!facts.forest.is_outermost[c]) {
    return UnitRefusal{.obstacle = kInsideItself, .op = call.AtPlace(0)};
  }
  for (const TensorId t : call.arguments) {
    const OperatorId writer =
        NextWrite(facts, c, trace.tensors[t].storage, call.start);
    if (writer == kNoOperator) continue;
    return UnitRefusal{.obstacle = kArgumentWritten, .op = writer};
  }
  // Others may write after the call to what it writes to in place and is not its own.
  for (const OperatorId k : OperatorsIn(call.start, LastOf(facts, c))) {
    // Nothing of it could be saved.
    const TraceOperator& op = trace.operators[k];
    const bool returns_nothing = op.outputs.empty() && op.mutates.empty();
    if (returns_nothing && ReadsStale(facts, c, k)) {
      return UnitRefusal{
          .obstacle = kStateRead,
          .op = k,
          .other = FirstStaleWrite(trace, facts.writes, call, k,
                                   facts.saves.first_request[c])};
    }
    for (const StorageId s : op.mutates) {
      if (!trace.storages[s].IsOlderThan(call.start)) continue;
      const OperatorId writer = NextWrite(facts, c, s, call.end);
      if (writer == kNoOperator || IsOfNoAccount(facts, c, s)) continue;
      return UnitRefusal{.obstacle = kStateWritten, .op = k, .other = writer};
    }
  }
  if (facts.saves.is_asked_twice[c]) {
    for (const SavedTensor& saved : trace.saved) {
      const bool is_inside =
          saved.call >= c && saved.call < facts.forest.subtree_end[c];
      if (!is_inside || !saved.unpacked_again) continue;
      return UnitRefusal{
          .obstacle = kAskedTwice,
          .op = OperatorAt(std::max(saved.packed - 1, call.start))};
    }
  }
  if (facts.saves.is_recast[c]) {
    return UnitRefusal{.obstacle = kCastAgain, .op = call.AtPlace(0)};
  }
  return std::nullopt;
}

// The first operators in which two calls of a module differ.
std::optional<UnitRefusal> FirstDifference(const Trace& trace,
                                           const TraceCall& a,
                                           const TraceCall& b) {
  if (&a == &b) return std::nullopt;
  const auto refused_at = [&](int32_t place) {
    const auto op_of = [&](const TraceCall& call) -> OperatorId {
      return place < call.OperatorCount() ? call.AtPlace(place) : kNone;
    };
    return UnitRefusal{
        .obstacle = kOtherOperators, .op = op_of(b), .other = op_of(a)};
  };
  const int32_t count = std::min(a.OperatorCount(), b.OperatorCount());
  for (int32_t k = 0; k < count; ++k) {
    const TraceOperator& in_a = trace.operators[a.AtPlace(k)];
    const TraceOperator& in_b = trace.operators[b.AtPlace(k)];
    if (in_a.name != in_b.name || in_a.view != in_b.view ||
        in_a.random != in_b.random) {
      return refused_at(k);
    }
  }
  if (a.OperatorCount() == b.OperatorCount()) return std::nullopt;
  return refused_at(count);
}

// Returns "aten.add_.Tensor at nets/gpt2.py:123".
std::string NameAndPlace(const Trace& trace, OperatorId op) {
  if (op == kNone || op >= trace.operators.end_id()) return "no operator";
  const std::string name =
      OneLine(trace.operator_names[trace.operators[op].name]);
  const std::string source = SourceOf(trace, op);
  return source.empty() ? name : fmt::format("{} at {}", name, source);
}

std::optional<std::string> RefusalOfWholeCall(const CallFacts& facts,
                                              CallId c) {
  const Trace& trace = facts.trace;
  const TraceCall& call = trace.calls[c];
  for (const OperatorId k : call.Operators()) {
    const TraceOperator& op = trace.operators[k];
    if (op.random && call.arguments.empty()) {
      return fmt::format(
          "it cannot run again as a whole either, because {} draws random "
          "numbers, whose state PyTorch restores only for calls that receive a "
          "tensor by position; pass its input by position",
          NameAndPlace(trace, k));
    }
    for (const StorageId s : op.mutates) {
      if (!trace.storages[s].IsOlderThan(call.start) ||
          IsOfNoAccount(facts, c, s)) {
        continue;
      }
      return fmt::format(
          "it cannot run again as a whole either, because {} would write a "
          "second time to memory from outside of the module",
          NameAndPlace(trace, k));
    }
  }
  return std::nullopt;
}

}  // namespace

bool ReadsStale(const CallFacts& facts, CallId call, OperatorId op) {
  return StartOf(op) < RerunStop(facts, call) &&
         FirstStaleWrite(facts.trace, facts.writes, facts.trace.calls[call], op,
                         facts.saves.first_request[call]) != kNoOperator;
}

std::optional<UnitRefusal> FindUnitRefusal(const CallFacts& facts,
                                           ModuleId module) {
  const Trace& trace = facts.trace;
  const TraceCall* first = nullptr;
  for (const CallId c : facts.forest.by_module[module]) {
    const TraceCall& call = trace.calls[c];
    if (call.no_grad) continue;
    if (first == nullptr) first = &call;
    if (const auto refusal = RefusalOfCall(facts, c)) return refusal;
    if (const auto refusal = FirstDifference(trace, *first, call)) {
      return refusal;
    }
  }
  if (first == nullptr) return UnitRefusal{.obstacle = kNoGradients};
  return std::nullopt;
}

std::optional<std::string> RefusalOfWhole(const CallFacts& facts,
                                          ModuleId module) {
  for (const CallId c : facts.forest.by_module[module]) {
    if (facts.trace.calls[c].no_grad) continue;
    if (!facts.forest.is_outermost[c]) return "";
    if (auto refusal = RefusalOfWholeCall(facts, c)) return refusal;
  }
  return std::nullopt;
}

std::string KindText(UnitObstacle obstacle) {
  switch (obstacle) {
    case kNoGradients:
      return "all of its calls run without gradients";
    case kInsideItself:
      return "one call of it runs inside another";
    case kArgumentWritten:
      return "an argument is written to in place before it would run again";
    case kStateWritten:
      return "memory from outside to which it writes in place is written to "
             "again before it would run again";
    case kStateRead:
      return "it reads a value that is overwritten before it would run again";
    case kAskedTwice:
      return "the backward pass asks twice for a tensor that is saved in it";
    case kCastAgain:
      return "autocast cast one of its weights before the call and would cast "
             "it again";
    case kOtherOperators:
      break;
  }
  return "its calls run different operators";
}

std::string PlaceText(const UnitRefusal& refusal, const Trace& trace) {
  const std::string op = NameAndPlace(trace, refusal.op);
  const std::string other = NameAndPlace(trace, refusal.other);
  switch (refusal.obstacle) {
    case kNoGradients:
      return "";
    case kInsideItself:
      return fmt::format(" (at {}); call another module inside", op);
    case kArgumentWritten:
      return fmt::format(" (by {}); write x = x + y there in place of x += y",
                         op);
    case kStateWritten:
      return fmt::format(
          " (first by {}, then by {}); compute a new tensor there, or write to "
          "the memory once a step, outside of the module",
          op, other);
    case kStateRead:
      return fmt::format(
          " (read by {}, overwritten by {}); read it outside of the module, or "
          "write to it once a step",
          op, other);
    case kAskedTwice:
      return fmt::format(
          " (saved at {}); run one backward pass, of the sum of the losses",
          op);
    case kCastAgain:
      return "; call autocast with cache_enabled=False";
    case kOtherOperators:
      break;
  }
  return fmt::format(
      " (first {}, then {}); give each kind of call its own module", other, op);
}

}  // namespace acplan::graph
