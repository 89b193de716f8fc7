#include "graph/trace/rerun_lives.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace acplan::graph {
namespace {

bool KeepsTensor(const Frame& frame, int32_t tensor, const Trace& trace) {
  const int32_t op = trace.tensors[tensor].op;
  const std::vector<int32_t>* kept = frame.KeptResults(op);
  return kept == nullptr || std::ranges::any_of(*kept, [&](int32_t result) {
           return trace.operators[op].results[result] == tensor;
         });
}

}  // namespace

RerunLives::RerunLives(const PreparedTrace& prepared)
    : prepared_(prepared), of_storage_(prepared.trace->storages.size()) {
  std::iota(of_storage_.begin(), of_storage_.end(), 0);
}

void RerunLives::SetTensors(const Frame& frame) {
  lives_of_tensors_.clear();
  if (!frame.HasPolicy()) return;
  start_ = frame.call->start;
  first_tensor_ = FirstTensorMadeFrom(start_);
  const int32_t end = FirstTensorMadeFrom(frame.rerun_stop);
  for (int32_t t = first_tensor_; t < end; ++t) {
    const TraceTensor& tensor = prepared_.trace->tensors[t];
    if (tensor.op >= start_ && frame.Saves(tensor.op)) {
      const bool is_kept = KeepsTensor(frame, t, *prepared_.trace);
      lives_of_tensors_.push_back(is_kept ? OfKept(tensor.storage) : kNoLife);
    } else if (tensor.op >= start_ && frame.Skips(tensor.op)) {
      lives_of_tensors_.push_back(OfSkippedResult(tensor));
    } else {
      lives_of_tensors_.push_back(OfBase(tensor));
    }
  }
}

int32_t RerunLives::OfKept(int32_t storage) const {
  const auto life = of_kept_.find(storage);
  return life == of_kept_.end() ? storage : life->second;
}

int32_t RerunLives::OfBase(const TraceTensor& tensor) const {
  return tensor.base >= first_tensor_
             ? lives_of_tensors_[tensor.base - first_tensor_]
             : of_storage_[tensor.storage];
}

// A skipped operator in place returns its argument.
int32_t RerunLives::OfSkippedResult(const TraceTensor& tensor) const {
  const std::vector<int32_t>& written =
      prepared_.trace->operators[tensor.op].mutates;
  return std::ranges::find(written, tensor.storage) == written.end()
             ? kNoLife
             : OfBase(tensor);
}

std::set<int32_t> RerunLives::SplitStorages() const {
  std::set<int32_t> split;
  for (size_t k = 0; k < lives_of_tensors_.size(); ++k) {
    const int32_t s = prepared_.trace->tensors[first_tensor_ + k].storage;
    if (of_storage_[s] == lives_of_tensors_[k]) continue;
    // What is from outside of the call others hold.
    const bool is_stand_in_of_argument =
        lives_of_tensors_[k] == kNoLife &&
        prepared_.trace->storages[s].born < start_;
    if (!is_stand_in_of_argument) split.insert(s);
  }
  return split;
}

int32_t RerunLives::FirstTensorMadeFrom(int32_t op) const {
  const Trace& trace = *prepared_.trace;
  const auto found =
      std::ranges::lower_bound(prepared_.made_tensors, op, {},
                               [&](int32_t t) { return trace.tensors[t].op; });
  return found == prepared_.made_tensors.end()
             ? static_cast<int32_t>(trace.tensors.size())
             : *found;
}

}  // namespace acplan::graph
