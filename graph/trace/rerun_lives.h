#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/prepared_trace.h"

namespace acplan::graph {

// What a stand-in has in place of a life.
inline constexpr int32_t kNoLife = -1;

// Which life is meant by a storage and by a tensor in the rerun at hand:
// without one, the original's. Lives are indices in the order of FindLives.
class RerunLives {
 public:
  explicit RerunLives(const PreparedTrace& prepared);

  void Set(int32_t storage, int32_t life) { of_storage_[storage] = life; }
  void Reset(int32_t storage) { of_storage_[storage] = storage; }

  // A kept result on a storage is of a life, in the frame at hand. By itself it
  // is of the original's.
  void SetKept(int32_t storage, int32_t life) { of_kept_[storage] = life; }
  void ResetKept() { of_kept_.clear(); }

  // The tensors that a frame's operators make when they run again. Where no
  // policy saves any, each is of the life that its storage means.
  void SetTensors(const Frame& frame);

  int32_t OfStorage(int32_t storage) const { return of_storage_[storage]; }

  int32_t OfTensor(int32_t tensor) const {
    const int32_t place = tensor - first_tensor_;
    return place >= 0 && place < std::ssize(lives_of_tensors_)
               ? lives_of_tensors_[place]
               : of_storage_[prepared_.trace->tensors[tensor].storage];
  }

  // The storages of which some tensors are made anew while others are views of
  // the original, or stand-ins.
  std::set<int32_t> SplitStorages() const;

  // The tensors that are of lives of their own.
  int32_t first_tensor() const { return first_tensor_; }
  int32_t end_of_tensors() const {
    return first_tensor_ + static_cast<int32_t>(lives_of_tensors_.size());
  }

 private:
  int32_t FirstTensorMadeFrom(int32_t op) const;
  // What has the storage of the tensor's base has its life.
  int32_t OfBase(const TraceTensor& tensor) const;
  int32_t OfSkippedResult(const TraceTensor& tensor) const;
  int32_t OfKept(int32_t storage) const;

  const PreparedTrace& prepared_;
  std::vector<int32_t> of_storage_;
  std::map<int32_t, int32_t> of_kept_;
  int32_t first_tensor_ = 0;
  std::vector<int32_t> lives_of_tensors_;
  int32_t start_ = 0;  // of the call
};

}  // namespace acplan::graph
