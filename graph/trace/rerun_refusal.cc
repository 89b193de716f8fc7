#include "graph/trace/rerun_refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>

#include "graph/trace/call_facts.h"
#include "graph/trace/moved_storages.h"
#include "graph/trace/trace.h"

namespace acplan::graph {
namespace {

const std::string& NameOf(OperatorId op, const Trace& trace) {
  return trace.operator_names[trace.operators[op].name];
}

// A result that the policy saves and that is written to in place later is, when
// the call runs again, as it was in the end. So all that writes to it must have
// been saved with it, and nothing that runs again may have read it before.
class SavedResults {
 public:
  SavedResults(const Frame& frame, const PreparedTrace& prepared)
      : frame_(frame), prepared_(prepared), trace_(*prepared.trace) {}

  // The reason why the policy is refused, if it is.
  std::optional<std::string> Refusal() {
    const Time last = std::min(frame_.call->end, frame_.rerun_stop);
    for (const OperatorId op :
         OperatorsIn(frame_.call->start, std::min(last, frame_.rerun_time))) {
      if (trace_.operators[op].opaque && frame_.Saves(op)) {
        return Place(op) +
               " cannot be saved, because its result is sparse; run it again";
      }
      if (auto refusal = RefusalOfWrites(op, frame_.Saves(op))) return refusal;
      Run(op);
    }
    // An operator that does not run again may write as well.
    for (Time begin = last; begin < frame_.rerun_time;) {
      OperatorId next = kNoOperator;
      for (const auto& [storage, op] : saved_by_) {
        next = std::min(
            next, prepared_.FirstWrite(storage, begin, frame_.rerun_time));
      }
      if (next == kNoOperator) break;
      const bool is_saved =
          StartOf(next) < frame_.call->end && frame_.Saves(next);
      if (auto refusal = RefusalOfWrites(next, is_saved)) return refusal;
      begin = EndOf(next);
    }
    return std::nullopt;
  }

 private:
  // "operator 3 (aten.add_.Tensor)", counted from the start of the call.
  std::string Place(OperatorId op) const {
    return fmt::format("operator {} ({})", frame_.call->PlaceOf(op),
                       NameOf(op, trace_));
  }

  std::optional<std::string> RefusalOfWrites(OperatorId op,
                                             bool is_saved) const {
    for (const StorageId s : trace_.operators[op].mutates) {
      const auto saved = saved_by_.find(s);
      if (saved == saved_by_.end()) {
        if (is_saved && !trace_.storages[s].IsOlderThan(frame_.call->start)) {
          return fmt::format(
              "{} cannot be saved, because it writes in place to a tensor that "
              "is not saved; save the operator that makes the tensor, too",
              Place(op));
        }
        continue;
      }
      if (!is_saved) {
        return fmt::format(
            "{} cannot be saved, because {}, which is not saved, writes to its "
            "result in place later; save both or neither",
            Place(saved->second), Place(op));
      }
      const auto reader = read_by_.find(s);
      if (reader == read_by_.end()) continue;
      return fmt::format(
          "{} cannot be saved, because {} writes to its result in place later "
          "and {}, which runs again, reads it before that; save all three or "
          "none",
          Place(saved->second), Place(op), Place(reader->second));
    }
    return std::nullopt;
  }

  // A counter of others, of which the call makes nothing else.
  bool IsOnlyUpdated(StorageId storage) const {
    return trace_.storages[storage].IsOlderThan(frame_.call->start) &&
           OnlyUpdates(trace_, *frame_.call, storage);
  }

  void Run(OperatorId op) {
    const TraceOperator& now = trace_.operators[op];
    const bool runs_again = frame_.RunsAgain(op);
    for (const StorageId s : now.reads) {
      if (runs_again && !now.view && saved_by_.contains(s)) read_by_[s] = op;
    }
    if (!frame_.Saves(op)) return;
    for (const StorageId s : now.outputs) {
      const bool is_kept_and_written =
          prepared_.is_written[s] && KeepsOutput(frame_, op, s, trace_);
      if (!is_kept_and_written || IsOnlyUpdated(s)) continue;
      saved_by_[s] = op;
      if (!now.view) read_by_.erase(s);
    }
  }

  const Frame& frame_;
  const PreparedTrace& prepared_;
  const Trace& trace_;
  // For each storage that is written to at all: the operator whose saved result it is,
  // and one that runs again and has read it since.
  std::map<StorageId, OperatorId> saved_by_, read_by_;
};

// A storage is copied as it is when the first operator has ended that offloads
// it, and comes back like that.
std::optional<std::string> OffloadRefusal(const Frame& frame,
                                          const PreparedTrace& prepared) {
  const Trace& trace = *prepared.trace;
  if (frame.parent != kNone && !frame.unit->offloaded_arguments.empty()) {
    return "its arguments cannot be offloaded, because it is inside of another "
           "unit; offload from the outermost unit";
  }
  for (const StorageId s : frame.offloaded_arguments) {
    const OperatorId writer =
        prepared.FirstWrite(s, frame.call->start, frame.rerun_time);
    if (writer == kNoOperator) continue;
    return fmt::format(
        "one of its arguments cannot be offloaded, because operator {} ({}) of "
        "the step writes to it in place before the unit runs again",
        writer, NameOf(writer, trace));
  }
  for (const OperatorId op : frame.call->Operators()) {
    if (!frame.Offloads(op)) continue;
    const std::string place =
        fmt::format("operator {} ({}) cannot be offloaded",
                    frame.call->PlaceOf(op), NameOf(op, trace));
    if (frame.parent != kNone) {
      return place +
             ", because its unit is inside of another one; offload from the "
             "outermost unit";
    }
    for (const StorageId s : KeptStorages(frame, op, trace)) {
      const OperatorId writer =
          prepared.FirstWrite(s, EndOf(op), frame.rerun_time);
      if (writer == kNoOperator) continue;
      return fmt::format(
          "{}, because operator {} ({}) of the step writes to its result in "
          "place later; save it on the device",
          place, writer, NameOf(writer, trace));
    }
  }
  return std::nullopt;
}

// An operator that runs again, and reads what was there before the call and has
// been written to since.
std::optional<std::string> StaleReadRefusal(const Frame& frame,
                                            const PreparedTrace& prepared) {
  const Trace& trace = *prepared.trace;
  const Time last = std::min(frame.call->end, frame.rerun_stop);
  for (const OperatorId op : OperatorsIn(frame.call->start, last)) {
    if (!frame.RunsAgain(op) || trace.operators[op].view) continue;
    for (const StorageId s : trace.operators[op].reads) {
      const bool was_there = trace.storages[s].IsOlderThan(frame.call->start);
      if (!was_there || !prepared.is_written[s]) continue;
      const OperatorId writer =
          prepared.FirstWrite(s, EndOf(op), frame.rerun_time);
      if (writer == kNoOperator || OnlyUpdates(trace, *frame.call, s)) continue;
      return fmt::format(
          "operator {} ({}) cannot run again, because it reads a tensor to "
          "which operator {} ({}) of the step writes in place before that; "
          "save its result",
          frame.call->PlaceOf(op), NameOf(op, trace), writer,
          NameOf(writer, trace));
    }
  }
  return std::nullopt;
}

std::optional<std::string> Reason(const Frame& frame,
                                  const PreparedTrace& prepared) {
  const Trace& trace = *prepared.trace;
  const bool asks_twice = std::ranges::any_of(
      frame.saved, [&](SavedId s) { return trace.saved[s].unpacked_again; });
  if (asks_twice) {
    return "it cannot be a unit, because the backward pass asks twice for a "
           "tensor that is saved in it, which PyTorch refuses; run one "
           "backward pass, of the sum of the losses";
  }
  const bool has_policy = frame.HasPolicy();
  if (has_policy && !frame.recasts.empty()) {
    return fmt::format(
        "it cannot have a policy, because autocast cast one of its weights "
        "before the call (operator {}) and would cast it again, which PyTorch "
        "refuses; call autocast with cache_enabled=False",
        frame.recasts.front().op);
  }
  OperatorId writer = kNoOperator;
  if (frame.parent == kNone) {
    for (const StorageId storage : frame.arguments) {
      writer = std::min(writer, prepared.FirstWrite(storage, frame.call->start,
                                                    frame.rerun_time));
    }
  }
  if (writer != kNoOperator) {
    return fmt::format(
        "it cannot be a unit, because operator {} ({}) of the step writes in "
        "place to one of its arguments, which PyTorch refuses; write x = x + y "
        "there in place of x += y",
        writer, NameOf(writer, trace));
  }
  if (auto refusal = StaleReadRefusal(frame, prepared)) return refusal;
  if (frame.has_offload) {
    if (auto refusal = OffloadRefusal(frame, prepared)) return refusal;
  }
  return has_policy ? SavedResults(frame, prepared).Refusal() : std::nullopt;
}

}  // namespace

std::optional<std::string> RerunRefusal(const Frame& frame,
                                        const PreparedTrace& prepared) {
  if (frame.rerun_time == kNever) return std::nullopt;
  const std::optional<std::string> reason = Reason(frame, prepared);
  if (!reason) return std::nullopt;
  return fmt::format("module '{}': {}",
                     prepared.trace->modules[frame.call->module].fqn, *reason);
}

}  // namespace acplan::graph
