#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// The part of the model that a stage of the pipeline computes, in all its chunks together.
struct StageContent {
  int64_t dense_layers = 0;
  int64_t moe_layers = 0;
  bool has_embedding = false;
  bool has_logits = false;
  // The number of logits: one more for each layer of prediction.
  int64_t logits = 0;

  int64_t Layers() const { return dense_layers + moe_layers; }
  bool operator==(const StageContent&) const = default;
};

// Neighbouring stages that are equal.
struct StageKind {
  StageContent content = {};
  size_t first = 0;
  size_t count = 0;
  bool operator==(const StageKind&) const = default;
};
std::vector<StageKind> KindsOfStages(const std::vector<StageContent>& stages);

// Divides the layers among stages. If stages and chunks divide the layers, each chunk gets
// as many. Otherwise embedding and logits count as a layer each (as in Megatron's
// account_for_embedding and in published layouts), and chunks have as many, the last ones
// one less. If `balances_ends`, stages are chosen so that the greatest of their weights is
// least: the weight of a layer is the number of elements of its matrices, likewise for
// logits.
std::vector<StageContent> DivideLayers(const TrainingJob& job);

// Returns the numbers of embeddings, layers and logits in each chunk, in the order in which a
// microbatch passes chunks, as DivideLayers divides them.
std::vector<int64_t> PiecesOfChunks(const TrainingJob& job);

}  // namespace acplan::costmodel
