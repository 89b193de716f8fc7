#include "costmodel/training/layer/rank_parameters.h"

namespace acplan::costmodel {

RankParameters LayerParametersOfRank(const TrainingJob& job, bool is_moe) {
  const LayerParameters p = CountLayerParameters(job.shape, is_moe);
  const double tensor = static_cast<double>(job.strategy.tensor);
  return {(p.attention + p.dense) / tensor + p.router + p.replicated,
          (p.experts + p.expert_vectors) /
              static_cast<double>(job.strategy.expert *
                                  job.strategy.expert_tensor)};
}

RankParameters StageParametersOfRank(const TrainingJob& job,
                                     const StageContent& stage) {
  RankParameters sum;
  const auto add = [&](bool is_moe, int64_t count) {
    if (count == 0) return;
    const RankParameters layer = LayerParametersOfRank(job, is_moe);
    sum.dense += layer.dense * static_cast<double>(count);
    sum.experts += layer.experts * static_cast<double>(count);
  };
  add(false, stage.dense_layers);
  add(true, stage.moe_layers);
  const double vocabulary =
      static_cast<double>(job.shape.vocabulary * job.shape.hidden) /
      static_cast<double>(job.strategy.tensor);
  if (stage.has_embedding)
    sum.dense += vocabulary + EmbeddingVectors(job.shape);
  const bool is_shared = job.shape.is_tied && stage.has_embedding;
  if (stage.has_logits && !is_shared) sum.dense += vocabulary;
  if (stage.has_logits) sum.dense += LogitsVectors(job.shape);
  return sum;
}

double RecomputedShare(const LayerOperation& operation,
                       const TrainingStrategy& strategy) {
  switch (strategy.recomputation) {
    case Recomputation::kNone:
    case Recomputation::kPlan:
      return 0;
    case Recomputation::kFull:
      return 1;
    case Recomputation::kSelective:
      return strategy.parts.contains(operation.part) ? 1 : 0;
    case Recomputation::kOperators:
      if (operation.product.groups > 0) return .5;
      return operation.part == LayerPart::kCoreAttention ? 0 : 1;
  }
  return 0;
}

}  // namespace acplan::costmodel
