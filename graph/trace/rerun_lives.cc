#include "graph/trace/rerun_lives.h"

#include <algorithm>
#include <cstddef>

namespace acplan::graph {
namespace {

bool KeepsTensor(const Frame& frame, TensorId tensor, const Trace& trace) {
  const OperatorId op = trace.tensors[tensor].op;
  const std::vector<int32_t>* results = frame.KeptResults(op);
  return results == nullptr ||
         std::ranges::any_of(*results, [&](int32_t result) {
           return trace.operators[op].results[result] == tensor;
         });
}

}  // namespace

RerunLives::RerunLives(const PreparedTrace& prepared)
    : prepared_(prepared), of_storage_(prepared.trace->storages.size()) {
  for (const StorageId s : of_storage_.ids()) Reset(s);
}

void RerunLives::SetStandIns(const Frame& frame, OperatorId op) {
  for (const StorageId s : prepared_.CreatedBy(op)) {
    const bool is_kept =
        frame.Saves(op) && (frame.KeptResults(op) == nullptr ||
                            KeepsOutput(frame, op, s, *prepared_.trace));
    if (!is_kept) Set(s, kNone);
  }
}

void RerunLives::SetFetched(const Frame& frame, StorageId storage,
                            LifeId life) {
  const Trace& trace = *prepared_.trace;
  const OperatorId born = trace.storages[storage].born;
  of_kept_[storage] = life;
  const bool is_kept_by_its_maker = StartOf(born) >= frame.call->start &&
                                    frame.Saves(born) &&
                                    KeepsOutput(frame, born, storage, trace);
  if (is_kept_by_its_maker) Set(storage, life);
}

void RerunLives::ResetFetched() {
  for (const auto& [storage, life] : of_kept_) Reset(storage);
  of_kept_.clear();
}

void RerunLives::SetTensors(const Frame& frame) {
  lives_of_tensors_.clear();
  if (!frame.HasPolicy()) return;
  start_ = frame.call->start;
  first_tensor_ = FirstTensorMadeFrom(start_);
  const TensorId end = FirstTensorMadeFrom(frame.rerun_stop);
  for (const TensorId t : IdRange(first_tensor_, end)) {
    const TraceTensor& tensor = prepared_.trace->tensors[t];
    const bool is_made = StartOf(tensor.op) >= start_;
    if (is_made && frame.Saves(tensor.op)) {
      const bool is_kept = KeepsTensor(frame, t, *prepared_.trace);
      lives_of_tensors_.push_back(is_kept ? OfKept(tensor.storage)
                                          : LifeId{kNone});
    } else if (is_made && frame.Skips(tensor.op)) {
      lives_of_tensors_.push_back(OfSkippedResult(tensor));
    } else {
      lives_of_tensors_.push_back(OfBase(tensor));
    }
  }
}

LifeId RerunLives::OfKept(StorageId storage) const {
  const auto life = of_kept_.find(storage);
  return life == of_kept_.end() ? OriginalLife(storage) : life->second;
}

LifeId RerunLives::OfBase(const TraceTensor& tensor) const {
  return tensor.base >= first_tensor_
             ? lives_of_tensors_[IndexOf(tensor.base) - IndexOf(first_tensor_)]
             : of_storage_[tensor.storage];
}

// A skipped operator in place returns its argument.
LifeId RerunLives::OfSkippedResult(const TraceTensor& tensor) const {
  const std::vector<StorageId>& mutates =
      prepared_.trace->operators[tensor.op].mutates;
  return std::ranges::find(mutates, tensor.storage) == mutates.end()
             ? kNone
             : OfBase(tensor);
}

std::set<StorageId> RerunLives::SplitStorages() const {
  std::set<StorageId> split;
  for (const TensorId t : tensors()) {
    const StorageId s = prepared_.trace->tensors[t].storage;
    const LifeId life = OfTensor(t);
    if (of_storage_[s] == life) continue;
    // Others hold storages from outside of the call.
    const bool is_stand_in_of_argument =
        life == kNone && prepared_.trace->storages[s].IsOlderThan(start_);
    if (!is_stand_in_of_argument) split.insert(s);
  }
  return split;
}

TensorId RerunLives::FirstTensorMadeFrom(Time time) const {
  const Trace& trace = *prepared_.trace;
  const auto first =
      std::ranges::lower_bound(prepared_.made_tensors, OperatorAt(time), {},
                               [&](TensorId t) { return trace.tensors[t].op; });
  return first == prepared_.made_tensors.end() ? trace.tensors.end_id()
                                               : *first;
}

}  // namespace acplan::graph
