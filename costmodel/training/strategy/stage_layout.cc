// The balanced division. With stages of contiguous blocks, whether a bound on the weight
// suffices is decided by filling stages one by one, each as far as the bound allows
// (filling less never helps later stages). The least sufficient bound is one of the sums of
// contiguous blocks, which bisection on the value finds.
#include "costmodel/training/strategy/stage_layout.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

enum class StagePiece { kEmbedding, kDense, kMoe, kLogits };

std::vector<StagePiece> AllBlocks(const ModelShape& shape) {
  std::vector<StagePiece> blocks = {StagePiece::kEmbedding};
  for (int64_t i = 0; i < shape.layers + shape.mtp_layers; ++i) {
    blocks.push_back(shape.IsMoeLayer(i) ? StagePiece::kMoe
                                         : StagePiece::kDense);
  }
  blocks.push_back(StagePiece::kLogits);
  return blocks;
}

StageContent With(StageContent stage, StagePiece block,
                  const ModelShape& shape) {
  switch (block) {
    case StagePiece::kEmbedding:
      stage.has_embedding = true;
      break;
    case StagePiece::kDense:
      ++stage.dense_layers;
      break;
    case StagePiece::kMoe:
      ++stage.moe_layers;
      break;
    case StagePiece::kLogits:
      stage.has_logits = true;
      stage.logits = 1 + shape.mtp_layers;
      break;
  }
  return stage;
}

double Weight(StagePiece block, const ModelShape& shape) {
  switch (block) {
    case StagePiece::kEmbedding:
      return 0;
    case StagePiece::kLogits:
      return static_cast<double>(shape.vocabulary * shape.hidden);
    default: {
      const LayerParameters p =
          CountLayerParameters(shape, block == StagePiece::kMoe);
      const double share = block == StagePiece::kMoe
                               ? static_cast<double>(shape.top_k) /
                                     static_cast<double>(shape.experts)
                               : 0;
      return p.attention + p.dense + share * p.experts;
    }
  }
}

// Returns the number of blocks of each stage if none may weigh more than `bound`.
std::vector<int64_t> Fill(const std::vector<double>& weights, double bound) {
  std::vector<int64_t> counts = {0};
  double sum = 0;
  for (const double weight : weights) {
    if (sum + weight > bound && counts.back() > 0) {
      counts.push_back(0);
      sum = 0;
    }
    sum += weight;
    ++counts.back();
  }
  return counts;
}

std::vector<int64_t> BalancedCounts(const std::vector<double>& weights,
                                    int64_t stages) {
  double low = *std::max_element(weights.begin(), weights.end());
  double high = 0;
  for (const double weight : weights) high += weight;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    const bool suffices =
        static_cast<int64_t>(Fill(weights, middle).size()) <= stages;
    (suffices ? high : low) = middle;
  }
  std::vector<int64_t> counts = Fill(weights, high * (1 + 1e-12));
  counts.resize(static_cast<size_t>(stages), 0);
  return counts;
}

// Returns the numbers of blocks of chunks, as equal as possible; earlier chunks have one
// more.
std::vector<int64_t> EvenCounts(int64_t blocks, int64_t chunks) {
  std::vector<int64_t> counts;
  for (int64_t i = 0; i < chunks; ++i) {
    counts.push_back(blocks / chunks + (i < blocks % chunks ? 1 : 0));
  }
  return counts;
}

// Returns the numbers of layers of chunks. The first and the last stage have the layers
// that the strategy states, the others the rest in equal parts; layers of prediction come
// last.
std::vector<int64_t> StatedCounts(int64_t layers, int64_t mtp_layers,
                                  const TrainingStrategy& s) {
  const int64_t rest = layers - mtp_layers - s.first_layers - s.last_layers;
  const int64_t others =
      s.pipeline - (s.first_layers > 0 ? 1 : 0) - (s.last_layers > 0 ? 1 : 0);
  const int64_t even = others > 0 ? rest / others : 0;
  std::vector<int64_t> counts(static_cast<size_t>(s.pipeline * s.chunks),
                              even / s.chunks);
  for (int64_t chunk = 0; chunk < s.chunks; ++chunk) {
    const size_t first = static_cast<size_t>(chunk * s.pipeline);
    const size_t last = first + static_cast<size_t>(s.pipeline) - 1;
    if (s.first_layers > 0) counts[first] = s.first_layers / s.chunks;
    if (s.last_layers > 0) counts[last] = s.last_layers / s.chunks;
  }
  ++counts.front();
  counts.back() += 1 + mtp_layers;
  return counts;
}

// Returns the stage of a chunk: in turn, or back and forth.
size_t StageOfChunk(size_t chunk, const TrainingStrategy& s) {
  const size_t stages = static_cast<size_t>(s.pipeline);
  if (!IsVShaped(s.schedule)) return chunk % stages;
  return chunk < stages ? chunk : 2 * stages - 1 - chunk;
}

StageContent Both(const StageContent& a, const StageContent& b) {
  return {.dense_layers = a.dense_layers + b.dense_layers,
          .moe_layers = a.moe_layers + b.moe_layers,
          .has_embedding = a.has_embedding || b.has_embedding,
          .has_logits = a.has_logits || b.has_logits,
          .logits = a.logits + b.logits};
}

std::vector<int64_t> ChunkCounts(const TrainingJob& job,
                                 const std::vector<StagePiece>& blocks) {
  const TrainingStrategy& s = job.strategy;
  const int64_t chunks = s.pipeline * s.chunks;
  if (!s.layout.empty()) return s.layout;
  if (s.balances_ends && s.chunks == 1) {
    std::vector<double> weights;
    for (const StagePiece block : blocks) {
      weights.push_back(Weight(block, job.shape));
    }
    return BalancedCounts(weights, s.pipeline);
  }
  const int64_t layers = static_cast<int64_t>(blocks.size()) - 2;
  if (s.first_layers > 0 || s.last_layers > 0) {
    return StatedCounts(layers, job.shape.mtp_layers, s);
  }
  if (s.counts_embedding || s.counts_logits) {
    std::vector<int64_t> counts = EvenCounts(
        layers + (s.counts_embedding ? 1 : 0) + (s.counts_logits ? 1 : 0),
        chunks);
    if (!s.counts_embedding) ++counts.front();
    if (!s.counts_logits) ++counts.back();
    return counts;
  }
  if (layers % chunks != 0) return EvenCounts(layers + 2, chunks);
  std::vector<int64_t> counts = EvenCounts(layers, chunks);
  ++counts.front();
  ++counts.back();
  return counts;
}

}  // namespace

std::vector<StageKind> KindsOfStages(const std::vector<StageContent>& stages) {
  std::vector<StageKind> kinds;
  for (size_t i = 0; i < stages.size(); ++i) {
    if (kinds.empty() || kinds.back().content != stages[i]) {
      kinds.push_back({stages[i], i, 0});
    }
    ++kinds.back().count;
  }
  return kinds;
}

std::vector<int64_t> PiecesOfChunks(const TrainingJob& job) {
  return ChunkCounts(job, AllBlocks(job.shape));
}

std::vector<StageContent> DivideLayers(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  const std::vector<StagePiece> blocks = AllBlocks(job.shape);
  const std::vector<int64_t> counts = ChunkCounts(job, blocks);
  std::vector<StageContent> stages(static_cast<size_t>(s.pipeline));
  size_t next = 0;
  for (size_t chunk = 0; chunk < counts.size(); ++chunk) {
    StageContent& stage = stages[StageOfChunk(chunk, s)];
    for (int64_t i = 0; i < counts[chunk]; ++i) {
      stage = With(stage, blocks[next++], job.shape);
    }
  }
  if (s.schedule != PipelineSchedule::kDualPipe) return stages;
  std::vector<StageContent> mirrored;
  for (size_t i = 0; i < stages.size(); ++i) {
    mirrored.push_back(Both(stages[i], stages[stages.size() - 1 - i]));
  }
  return mirrored;
}

}  // namespace acplan::costmodel
