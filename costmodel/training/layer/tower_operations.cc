#include "costmodel/training/layer/tower_operations.h"

namespace acplan::costmodel {
namespace {

constexpr double kWidthOfBf16 = 2;

// Returns a product of `rows` vectors with a weight, which keeps its input.
LayerOperation ProductOf(std::string_view name, double rows, int64_t columns,
                         int64_t inner) {
  return {.name = name,
          .part = LayerPart::kFeedforward,
          .product = {.rows = rows,
                      .columns = static_cast<double>(columns),
                      .inner = static_cast<double>(inner),
                      .groups = 1},
          .forward_launches = 2,
          .backward_launches = 3,
          .saved_bytes = kWidthOfBf16 * rows * static_cast<double>(inner)};
}

double ImagesOf(const TrainingStrategy& strategy) {
  return static_cast<double>(strategy.microbatch * strategy.images);
}

// Returns the ranks that share the layers of a tower.
int64_t TensorOf(const Tower& tower, const TrainingStrategy& strategy) {
  const bool is_split = tower.stack->heads % strategy.tensor == 0 &&
                        tower.stack->feedforward % strategy.tensor == 0;
  return is_split ? strategy.tensor : 1;
}

// Returns the embedding of an encoder's source, of tokens or of frames of sound, and the result
// of its layers, which the decoder's layers read and keep, with the embedding's dropout.
std::vector<LayerOperation> EncoderOperations(const TrainingJob& job,
                                              const Tower& tower) {
  const TrainingStrategy& s = job.strategy;
  const double rows = static_cast<double>(s.microbatch * s.source);
  std::vector<LayerOperation> operations;
  if (tower.patch_elements > 0) {
    operations.push_back(ProductOf("convolutions", rows, tower.stack->hidden,
                                   tower.patch_elements));
  } else {
    operations =
        EmbeddingOperations(*tower.stack, JobOfTower(job, tower).strategy);
  }
  const double kept_rows =
      s.sequence_parallel ? rows / static_cast<double>(s.tensor) : rows;
  const double mask = s.drops_embedding ? 1 : 0;
  operations.push_back(
      {.name = "source",
       .part = LayerPart::kNorm,
       .saved_bytes = (kWidthOfBf16 + mask) * kept_rows *
                      static_cast<double>(tower.stack->hidden)});
  return operations;
}

double StackParametersOfRank(const TrainingJob& job, const Tower& tower) {
  const LayerParameters layer = CountLayerParameters(*tower.stack, false);
  const double matrices = (layer.attention + layer.dense) /
                          static_cast<double>(TensorOf(tower, job.strategy));
  return static_cast<double>(tower.stack->layers) *
             (matrices + layer.replicated) +
         static_cast<double>(tower.outer_parameters);
}

}  // namespace

TrainingJob JobOfTower(const TrainingJob& job, const Tower& tower) {
  TrainingJob layers = job;
  layers.shape = *tower.stack;
  TrainingStrategy& s = layers.strategy;
  s.sequence = PatchesOf(tower, s) + tower.positions;
  if (!tower.is_encoder) s.microbatch *= s.images;
  s.context = s.expert = s.expert_tensor = 1;
  s.tensor = TensorOf(tower, s);
  if (!tower.is_encoder) {
    s.precision = ProductPrecision::kBf16;
    s.drops_hidden = s.drops_scores = false;
  }
  s.lora_rank = 0;
  s.has_four_bit_base = false;
  s.full_layers = s.every_layers = 0;
  if (s.recomputation != Recomputation::kFull) {
    s.recomputation = Recomputation::kNone;
  }
  return layers;
}

bool RunsTowers(const TrainingJob& job) {
  return job.strategy.images > 0 || job.shape.HasEncoder();
}

bool TrainsTowers(const TrainingStrategy& strategy) {
  return strategy.lora_rank == 0 && !strategy.freezes_towers;
}

bool TrainsProjectors(const TrainingStrategy& strategy) {
  return strategy.lora_rank == 0;
}

std::vector<LayerOperation> PatchOperations(const TrainingJob& job,
                                            const Tower& tower) {
  if (tower.is_encoder) return EncoderOperations(job, tower);
  const double rows = ImagesOf(job.strategy) *
                      static_cast<double>(PatchesOf(tower, job.strategy));
  return {
      ProductOf("patches", rows, tower.stack->hidden, tower.patch_elements)};
}

std::vector<LayerOperation> ProjectorOperations(const TrainingJob& job,
                                                const Tower& tower) {
  std::vector<LayerOperation> operations;
  const double patches = ImagesOf(job.strategy) *
                         static_cast<double>(PatchesOf(tower, job.strategy));
  for (const ProjectorProduct& product : tower.projector) {
    operations.push_back(
        ProductOf("projector", patches / static_cast<double>(product.patches),
                  product.columns, product.inner));
  }
  return operations;
}

double TowerParametersOfRank(const TrainingJob& job) {
  double sum = 0;
  for (const Tower& tower : job.shape.towers) {
    sum += StackParametersOfRank(job, tower) +
           static_cast<double>(tower.projector_parameters);
  }
  return sum;
}

double TrainedTowerParametersOfRank(const TrainingJob& job) {
  double sum = 0;
  for (const Tower& tower : job.shape.towers) {
    if (TrainsTowers(job.strategy)) sum += StackParametersOfRank(job, tower);
    if (TrainsProjectors(job.strategy)) {
      sum += static_cast<double>(tower.projector_parameters);
    }
  }
  return sum;
}

}  // namespace acplan::costmodel
