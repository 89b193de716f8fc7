#include "costmodel/training/layer/rank_parameters.h"

#include "costmodel/training/layer/tower_operations.h"

namespace acplan::costmodel {
namespace {

constexpr double kWeightBytes = 2;

bool IsOfExperts(const LayerOperation& operation) {
  return operation.part == LayerPart::kMoe && operation.name != "router";
}

// Returns the sum of `count` over the products with weights of a layer.
template <typename Count>
RankParameters SumOverWeights(const TrainingJob& job, bool is_moe,
                              const Count& count) {
  RankParameters sum;
  for (const LayerOperation& operation :
       LayerOperations(job.shape, job.strategy, {.is_moe = is_moe})) {
    const MatrixProduct& product = operation.product;
    if (product.groups == 0 || !product.has_weights) continue;
    double& part = IsOfExperts(operation) ? sum.experts : sum.dense;
    part += operation.share * product.groups * count(operation);
  }
  return sum;
}

// Returns the sum over the layers of a stage.
template <typename OfLayer>
RankParameters SumOverLayers(const StageContent& stage,
                             const OfLayer& of_layer) {
  RankParameters sum;
  const auto add = [&](bool is_moe, int64_t count) {
    if (count == 0) return;
    const RankParameters layer = of_layer(is_moe);
    sum.dense += layer.dense * static_cast<double>(count);
    sum.experts += layer.experts * static_cast<double>(count);
  };
  add(false, stage.dense_layers);
  add(true, stage.moe_layers);
  return sum;
}

// Returns the bytes of parameters that layers have, of which `layers` are the elements.
RankParameters BytesOf(const TrainingJob& job, RankParameters layers,
                       const RankParameters& adapters,
                       const RankParameters& weights) {
  const TrainingStrategy& s = job.strategy;
  RankParameters bytes{kWeightBytes * layers.dense,
                       kWeightBytes * layers.experts};
  if (s.lora_rank > 0) {
    bytes.dense += kWeightBytes * adapters.dense;
    bytes.experts += kWeightBytes * adapters.experts;
  }
  if (s.has_four_bit_base) {
    constexpr double kLess = kWeightBytes - kFourBitBytes;
    bytes.dense -= kLess * weights.dense;
    bytes.experts -= kLess * weights.experts;
  }
  return bytes;
}

// Returns the elements of the weights of a layer that four bits can replace.
RankParameters LinearWeightsOfRank(const TrainingJob& job, bool is_moe) {
  return SumOverWeights(job, is_moe, [](const LayerOperation& operation) {
    const MatrixProduct& product = operation.product;
    return operation.name == "router" ? 0 : product.inner * product.columns;
  });
}

}  // namespace

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
  RankParameters sum = SumOverLayers(
      stage, [&](bool is_moe) { return LayerParametersOfRank(job, is_moe); });
  const double vocabulary =
      static_cast<double>(job.shape.vocabulary * job.shape.hidden) /
      static_cast<double>(job.strategy.tensor);
  if (stage.has_embedding) {
    sum.dense += vocabulary + EmbeddingVectors(job.shape);
    if (!job.shape.towers.empty()) sum.dense += TowerParametersOfRank(job);
  }
  const bool is_shared = job.shape.is_tied && stage.has_embedding;
  if (stage.has_logits && !is_shared) sum.dense += vocabulary;
  if (stage.has_logits) sum.dense += LogitsVectors(job.shape);
  return sum;
}

RankParameters TrainedLayerParametersOfRank(const TrainingJob& job,
                                            bool is_moe) {
  const TrainingStrategy& s = job.strategy;
  if (s.lora_rank == 0) return LayerParametersOfRank(job, is_moe);
  const double rank = static_cast<double>(s.lora_rank);
  return SumOverWeights(job, is_moe, [&](const LayerOperation& operation) {
    const MatrixProduct& product = operation.product;
    return product.has_adapter ? rank * (product.inner + product.columns) : 0;
  });
}

RankParameters TrainedStageParametersOfRank(const TrainingJob& job,
                                            const StageContent& stage) {
  if (job.strategy.lora_rank == 0) {
    RankParameters all = StageParametersOfRank(job, stage);
    if (stage.has_embedding && !job.shape.towers.empty()) {
      all.dense -=
          TowerParametersOfRank(job) - TrainedTowerParametersOfRank(job);
    }
    return all;
  }
  return SumOverLayers(stage, [&](bool is_moe) {
    return TrainedLayerParametersOfRank(job, is_moe);
  });
}

RankParameters LayerBytesOfRank(const TrainingJob& job, bool is_moe) {
  const bool has_adapters = job.strategy.lora_rank > 0;
  return BytesOf(
      job, LayerParametersOfRank(job, is_moe),
      has_adapters ? TrainedLayerParametersOfRank(job, is_moe)
                   : RankParameters(),
      has_adapters ? LinearWeightsOfRank(job, is_moe) : RankParameters());
}

RankParameters StageBytesOfRank(const TrainingJob& job,
                                const StageContent& stage,
                                const RankParameters& trained) {
  if (job.strategy.lora_rank == 0) {
    RankParameters all = trained;
    if (stage.has_embedding && !job.shape.towers.empty()) {
      all.dense +=
          TowerParametersOfRank(job) - TrainedTowerParametersOfRank(job);
    }
    return BytesOf(job, all, {}, {});
  }
  return BytesOf(job, StageParametersOfRank(job, stage), trained,
                 SumOverLayers(stage, [&](bool is_moe) {
                   return LinearWeightsOfRank(job, is_moe);
                 }));
}

double CountTrainedParameters(const TrainingJob& job) {
  TrainingJob one = job;
  TrainingStrategy& s = one.strategy;
  s.gpus = s.tensor = s.pipeline = s.chunks = s.context = s.expert =
      s.expert_tensor = 1;
  s.schedule = PipelineSchedule::kOneForwardOneBackward;
  s.layout.clear();
  s.first_layers = s.last_layers = 0;
  RankParameters sum;
  for (const StageContent& stage : DivideLayers(one)) {
    const RankParameters trained = TrainedStageParametersOfRank(one, stage);
    sum.dense += trained.dense;
    sum.experts += trained.experts;
  }
  return sum.dense + sum.experts;
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
