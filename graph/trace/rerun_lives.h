#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/lifetimes.h"
#include "graph/trace/prepared_trace.h"

namespace acplan::graph {

// The lives that storages and tensors mean in the rerun at hand: without one, the
// original's. A stand-in has none.
class RerunLives {
 public:
  explicit RerunLives(const PreparedTrace& prepared);

  void Set(StorageId storage, LifeId life) { of_storage_[storage] = life; }
  void Reset(StorageId storage) {
    of_storage_[storage] = OriginalLife(storage);
  }

  // Takes the life from the storages that an operator does not make, as it is skipped,
  // or does not keep.
  void SetStandIns(const Frame& frame, OperatorId op);

  // Makes kept results on a storage be of this life until ResetFetched. Otherwise they
  // are of the original's.
  void SetFetched(const Frame& frame, StorageId storage, LifeId life);
  void ResetFetched();

  // Finds the lives of the tensors that a frame's operators make when they run again.
  // If no policy saves any, each is of the life that its storage means.
  void SetTensors(const Frame& frame);

  LifeId OfStorage(StorageId storage) const { return of_storage_[storage]; }

  LifeId OfTensor(TensorId tensor) const {
    const int32_t place = IndexOf(tensor) - IndexOf(first_tensor_);
    return place >= 0 && place < std::ssize(lives_of_tensors_)
               ? lives_of_tensors_[place]
               : of_storage_[prepared_.trace->tensors[tensor].storage];
  }

  // Returns the storages of which some tensors are made anew while others are views of
  // the original, or stand-ins.
  std::set<StorageId> SplitStorages() const;

  // The tensors that are of lives of their own.
  IdRange<TensorId> tensors() const {
    return {first_tensor_,
            IdAt<TensorId>(IndexOf(first_tensor_) + lives_of_tensors_.size())};
  }

 private:
  // Returns the first tensor that is made at a time or later.
  TensorId FirstTensorMadeFrom(Time time) const;
  // Returns the life of the tensor's base, which has the same storage.
  LifeId OfBase(const TraceTensor& tensor) const;
  LifeId OfSkippedResult(const TraceTensor& tensor) const;
  LifeId OfKept(StorageId storage) const;

  const PreparedTrace& prepared_;
  IndexedVector<StorageId, LifeId> of_storage_;
  std::map<StorageId, LifeId> of_kept_;
  TensorId first_tensor_ = {};
  std::vector<LifeId> lives_of_tensors_;  // of first_tensor_ and those after it
  Time start_ = 0;                        // of the call
};

}  // namespace acplan::graph
