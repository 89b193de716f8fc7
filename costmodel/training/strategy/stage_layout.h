#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// What a stage of the pipeline computes, all its chunks together.
struct StageContent {
  int64_t dense_layers = 0;
  int64_t moe_layers = 0;
  bool has_embedding = false;
  bool has_logits = false;
  int64_t logits = 0;  // how often: once more for each layer of prediction

  int64_t Layers() const { return dense_layers + moe_layers; }
  bool operator==(const StageContent&) const = default;
};

// Neighbouring stages that are alike.
struct StageKind {
  StageContent content = {};
  size_t first = 0;
  size_t count = 0;
  bool operator==(const StageKind&) const = default;
};
std::vector<StageKind> KindsOfStages(const std::vector<StageContent>& stages);

// How layers are divided among stages. Where stages and chunks divide the layers,
// each chunk gets as many; else embedding and logits count as a layer each (as
// Megatron's account_for_embedding does and published layouts are), and chunks
// have as many, the last ones one less. Where `balances_ends`, stages are chosen
// so that the greatest of their weights is least: a layer weighs as its matrices
// have elements, logits likewise.
std::vector<StageContent> DivideLayers(const TrainingJob& job);

}  // namespace acplan::costmodel
