// The memory of a rank, from the tensors that Megatron-Core and Transformer Engine keep at
// the peak of a step: at the end of a forward pass of the last microbatch that the pipeline
// starts before a backward pass.
//
// - Parameters in 16 bits (fp32 ones are in the optimizer), gradients that microbatches add
//   to, master weights and two moments in float32; the tensors that ZeRO shards are divided
//   by the ranks that share them.
// - Activations: the tensors that each operation of a layer saves (`saved_bytes`), times
//   the microbatches in flight (pipeline_schedule.h).
// - A recomputed layer keeps its input and, while it runs again, all tensors of one layer;
//   or there are the logits, if these are more. The same holds for selected parts and the
//   tensors that they make and drop (DropsItsResult).
// - Transformer Engine adds gradients of weights to those of earlier microbatches within
//   the product, and hands autograd an empty tensor of the weight's size in their stead,
//   one for each shape (get_dummy_wgrad): the weights of a layer once more.
// - In addition the gradients of activations of the running layer: five tensors of the
//   hidden size, a number that was seen on runs (docs/training_cost_model.md).
#include "costmodel/training/memory/step_memory.h"

#include <algorithm>

#include "costmodel/training/layer/layer_graph.h"
#include "costmodel/training/layer/layer_operations.h"
#include "costmodel/training/layer/operation_times.h"
#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/layer/tower_operations.h"
#include "costmodel/training/memory/eager_memory.h"
#include "costmodel/training/strategy/pipeline_schedule.h"
#include "costmodel/training/strategy/stage_layout.h"

namespace acplan::costmodel {
namespace {

constexpr double kWorkingTensors = 5;
// Logits in 16 bits, and a copy in float32.
constexpr double kLogitBytes = 6;

// Returns the elements of the residual stream on a rank, for one microbatch.
double ResidualElements(const TrainingStrategy& s, const ModelShape& shape) {
  return static_cast<double>(s.microbatch * s.sequence) *
         static_cast<double>(shape.hidden) /
         static_cast<double>(s.context * (s.sequence_parallel ? s.tensor : 1));
}

// Returns whether Megatron-LM also drops the result of a part that only the next operation
// reads. It keeps the outputs of the other parts.
bool DropsItsResult(LayerPart part) {
  using enum LayerPart;
  return part == kNorm || part == kMlaUp || part == kActivation ||
         part == kMoeActivation || part == kResidual;
}

// Returns the bytes that a layer keeps if the parts of a strategy are recomputed: tensors
// that these parts make and that no other part reads are dropped; tensors of other parts
// that they read are kept, since they run again from them.
double KeptWithoutParts(const TrainingJob& job, bool is_moe,
                        const std::vector<LayerOperation>& operations) {
  const LayerGraph graph = GraphOfLayer(job, is_moe);
  OperationSet part_set = 0;
  OperationSet droppable = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    if (!job.strategy.parts.contains(operations[i].part)) continue;
    part_set |= OperationSet{1} << i;
    if (DropsItsResult(operations[i].part)) droppable |= OperationSet{1} << i;
  }
  OperationSet read_outside = 0;
  for (size_t i = 0; i < operations.size(); ++i) {
    if ((part_set >> i & 1) == 0) read_outside |= graph.operations[i].inputs;
  }
  double kept_bytes = graph.WholeBytes();
  for (const GraphTensor& tensor : graph.tensors) {
    const bool is_inside = (tensor.makers & ~part_set) == 0;
    const bool is_handed_on =
        tensor.is_output && (tensor.makers & read_outside & ~droppable) != 0;
    if (is_inside && !is_handed_on) kept_bytes -= tensor.bytes;
  }
  return kept_bytes;
}

// Returns the bytes of a microbatch that the layer of a hybrid which keeps most keeps.
double MostWholeBytes(const TrainingJob& job, bool is_moe) {
  double most = 0;
  for (const MixerChoice mixer :
       {MixerChoice::kMean, MixerChoice::kAttention, MixerChoice::kLinear}) {
    double sum = 0;
    for (const LayerOperation& operation : LayerOperations(
             job.shape, job.strategy, {.is_moe = is_moe, .mixer = mixer})) {
      sum += operation.saved_bytes;
    }
    most = std::max(most, sum);
  }
  return most;
}

LayerMemory MemoryOfLayer(const TrainingJob& job, bool is_moe,
                          bool is_recomputed) {
  const TrainingStrategy& s = job.strategy;
  LayerMemory memory;
  const std::vector<LayerOperation> operations =
      LayerOperations(job.shape, s, {.is_moe = is_moe});
  for (const LayerOperation& operation : operations) {
    memory.whole += operation.saved_bytes;
    const double recomputed_share =
        is_recomputed ? RecomputedShare(operation, s) : 0;
    memory.kept_bytes += (1 - recomputed_share) * operation.saved_bytes;
  }
  if (job.shape.IsHybrid()) memory.whole = MostWholeBytes(job, is_moe);
  if (is_recomputed && s.recomputation == Recomputation::kFull) {
    memory.kept_bytes = 2 * ResidualElements(s, job.shape);
  }
  if (is_recomputed && s.recomputation == Recomputation::kSelective) {
    memory.kept_bytes = KeptWithoutParts(job, is_moe, operations);
  }
  return memory;
}

double OffloadedShare(const TrainingStrategy& s, const StageContent& stage) {
  if (stage.Layers() == 0) return 0;
  return std::min(1.0, static_cast<double>(s.offloaded_layers) /
                           static_cast<double>(stage.Layers()));
}

// Returns the bytes that all layers of a stage keep for one microbatch, on the GPU and the
// host.
double KeptOfStage(const TrainingJob& job, const LayerMemories& layers,
                   const StageContent& stage) {
  const TrainingStrategy& s = job.strategy;
  int64_t recomputed = RecomputedLayers(s, stage.Layers());
  double kept_bytes = 0;
  const auto add = [&](const LayerMemory& plain_layer,
                       const LayerMemory& recomputed_layer, int64_t count) {
    const int64_t recomputed_count = std::min(recomputed, count);
    recomputed -= recomputed_count;
    kept_bytes +=
        static_cast<double>(recomputed_count) * recomputed_layer.kept_bytes +
        static_cast<double>(count - recomputed_count) * plain_layer.kept_bytes;
  };
  add(layers.dense, layers.dense_again, stage.dense_layers);
  add(layers.moe, layers.moe_again, stage.moe_layers);
  return kept_bytes;
}

// Returns the weights of a layer that have distinct shapes: of experts, those of one.
double WeightsOfLayers(const TrainingJob& job, const StageContent& stage) {
  double sum = 0;
  if (job.strategy.lora_rank > 0) return sum;
  const auto add = [&](bool is_moe, int64_t count) {
    if (count == 0) return;
    const RankParameters layer = LayerParametersOfRank(job, is_moe);
    const double local = std::max(
        1.0, static_cast<double>(job.shape.experts / job.strategy.expert));
    sum = std::max(sum, layer.dense + layer.experts / local);
  };
  add(false, stage.dense_layers);
  add(true, stage.moe_layers);
  return sum;
}

// Returns the bytes of workspaces: PyTorch's workspace of cuBLAS, one for each thread that
// computes, the forward pass's and autograd's (getChosenWorkspaceSize in CUDABlas.cpp;
// Megatron-LM's deterministic mode sets CUBLAS_WORKSPACE_CONFIG=:4096:8), and Transformer
// Engine's (get_cublas_workspace_size_bytes; three of them if userbuffers overlap tensor
// parallelism, initialize_ub).
double LibraryBytes(const TrainingJob& job) {
  constexpr double kMiB = 1024 * 1024;
  const bool is_hopper = job.cluster.gpu.fp8_rate > 0;  // or later
  const bool is_large = is_hopper || job.strategy.is_deterministic;
  const double torch = 2 * (is_large ? 32 : 8.125);
  const double engine =
      job.strategy.has_transformer_engine
          ? (is_hopper ? 32 : 4) * (job.strategy.overlaps_tensor ? 3 : 1)
          : 0;
  return kMiB * (torch + engine);
}

// Returns the bytes that a stage gathers of sharded parameters: a layer, the layer that is
// fetched ahead of it, and the table of the embedding or the logits, which stays; and the
// gradients of a layer before they are scattered.
double GatheredBytes(const TrainingJob& job, const StageContent& stage) {
  const TrainingStrategy& s = job.strategy;
  if (s.zero < 3) return 0;
  double layer_bytes = 0;
  double trained = 0;  // of a layer
  const auto add = [&](bool is_moe, int64_t count) {
    if (count == 0) return;
    const RankParameters bytes = LayerBytesOfRank(job, is_moe);
    layer_bytes = std::max(layer_bytes, bytes.dense + bytes.experts);
    const RankParameters p = TrainedLayerParametersOfRank(job, is_moe);
    trained = std::max(trained, p.dense + p.experts);
  };
  add(false, stage.dense_layers);
  add(true, stage.moe_layers);
  const bool has_table = stage.has_embedding || stage.has_logits;
  const double table =
      has_table ? static_cast<double>(job.shape.vocabulary * job.shape.hidden) /
                      static_cast<double>(s.tensor)
                : 0;
  return 2 * (layer_bytes + table) + s.gradient_reduce_bytes * trained;
}

// Returns the elements of the largest frozen weight of a layer, which is there in 16 bits while
// its product runs if the weights have four, or the largest trained one.
double LargestWeight(const TrainingJob& job, const StageContent& stage,
                     bool is_frozen) {
  double most = 0;
  for (const LayerOperation& operation : LayerOperations(
           job.shape, job.strategy, {.is_moe = stage.moe_layers > 0})) {
    const MatrixProduct& product = operation.product;
    if (product.is_frozen == is_frozen) {
      most = std::max(most, product.inner * product.columns);
    }
  }
  return most;
}

// Returns the bytes of the states that are on the GPU while an update goes through the
// parameters: of a part that comes, of one that is updated and of one that leaves.
double StatesOfUpdate(const TrainingJob& job, const StageContent& stage) {
  const TrainingStrategy& s = job.strategy;
  if (s.zero >= 1) return 3 * s.optimizer_bytes * kPartElements;
  double largest = LargestWeight(job, stage, false);
  if (stage.has_embedding || stage.has_logits) {
    largest = std::max(largest, static_cast<double>(job.shape.vocabulary) *
                                    static_cast<double>(job.shape.hidden) /
                                    static_cast<double>(s.tensor));
  }
  return s.optimizer_bytes *
         (2 * kPartElements + std::max(kPartElements, largest));
}

// Returns the memory of parameters, gradients and the optimizer's state.
RankMemory StatesOf(const TrainingJob& job, const StageContent& stage) {
  const TrainingStrategy& s = job.strategy;
  const RankParameters p = TrainedStageParametersOfRank(job, stage);
  const RankParameters bytes = StageBytesOfRank(job, stage, p);
  const double dense_ranks =
      static_cast<double>(DenseDataGroups(s).shards.size);
  const double expert_ranks =
      static_cast<double>(ExpertDataGroups(s).shards.size);
  const double sharded = p.dense / dense_ranks + p.experts / expert_ranks;
  const double whole = p.dense + p.experts;
  RankMemory memory;
  memory.parameters =
      s.zero >= 3 ? bytes.dense / dense_ranks + bytes.experts / expert_ranks
                  : bytes.dense + bytes.experts;
  memory.gradients = s.gradient_bytes * (s.zero >= 2 ? sharded : whole);
  const double states = s.optimizer_bytes * (s.zero >= 1 ? sharded : whole);
  if (s.offloads_states) {
    memory.host = states;
    memory.update = std::min(states, StatesOfUpdate(job, stage));
  } else {
    memory.optimizer = states;
  }
  return memory;
}

// Returns the bytes that towers keep of a microbatch for their backward pass, and those of a
// layer of theirs that runs again.
StageKeeping KeepingOfTowers(const TrainingJob& job) {
  StageKeeping keeping;
  if (!RunsTowers(job)) return keeping;
  const auto add = [&](const std::vector<LayerOperation>& operations) {
    for (const LayerOperation& operation : operations) {
      keeping.kept_bytes += operation.saved_bytes;
    }
  };
  for (const Tower& tower : job.shape.towers) {
    if (TrainsProjectors(job.strategy)) add(ProjectorOperations(job, tower));
    if (!TrainsTowers(job.strategy)) continue;
    add(PatchOperations(job, tower));
    const LayerMemory layer =
        MemoryOfLayer(JobOfTower(job, tower), false, true);
    keeping.kept_bytes +=
        static_cast<double>(tower.stack->layers) * layer.kept_bytes;
    if (job.strategy.recomputation == Recomputation::kFull) {
      keeping.recomputed_bytes =
          std::max(keeping.recomputed_bytes, layer.whole);
    }
  }
  return keeping;
}

RankMemory MemoryWithTowers(const TrainingJob& job, const StageContent& stage,
                            size_t index, const StageKeeping& keeping,
                            const StageKeeping& towers) {
  const TrainingStrategy& s = job.strategy;
  RankMemory memory = StatesOf(job, stage);
  memory.libraries = LibraryBytes(job);
  memory.activations = keeping.kept_bytes * MicrobatchesInFlight(s, index);
  const double rows = static_cast<double>(s.microbatch * s.sequence) /
                      static_cast<double>(s.context);
  if (stage.has_logits) {
    // All are there before the backward pass begins, those of prediction layers too.
    memory.logits = kLogitBytes * rows * static_cast<double>(stage.logits) *
                    static_cast<double>(job.shape.vocabulary) /
                    static_cast<double>(s.tensor);
  }
  memory.working =
      2 * WeightsOfLayers(job, stage) + GatheredBytes(job, stage) +
      kWorkingTensors * 2 * rows * static_cast<double>(job.shape.hidden);
  const double elements = ResidualElements(s, job.shape);
  if (stage.has_embedding && s.drops_embedding) {
    memory.activations += elements * MicrobatchesInFlight(s, index);
  }
  // The inputs of the last norm and of the product with the vocabulary.
  if (stage.has_logits) {
    memory.logits += (s.lora_rank > 0 ? 1 : 2) * 2 * elements;
  }
  if (s.has_four_bit_base)
    memory.working += 2 * LargestWeight(job, stage, true);
  double recomputed_bytes = keeping.recomputed_bytes;
  if (stage.has_embedding) {
    memory.activations += towers.kept_bytes * MicrobatchesInFlight(s, index);
    recomputed_bytes = std::max(recomputed_bytes, towers.recomputed_bytes);
  }
  // While the loss exists no layer runs again: the larger of both counts.
  if (recomputed_bytes <= memory.logits) return memory;
  memory.logits = 0;
  memory.working += recomputed_bytes;
  return memory;
}

}  // namespace

double UpdatedElements(const TrainingStrategy& strategy,
                       const RankParameters& trained) {
  if (strategy.zero == 0) return trained.dense + trained.experts;
  return trained.dense /
             static_cast<double>(DenseDataGroups(strategy).shards.size) +
         trained.experts /
             static_cast<double>(ExpertDataGroups(strategy).shards.size);
}

double OffloadedBytes(const TrainingJob& job, const LayerMemories& layers,
                      const StageContent& stage) {
  return KeptOfStage(job, layers, stage) * OffloadedShare(job.strategy, stage);
}

LayerMemories MemoriesOfLayers(const TrainingJob& job) {
  LayerMemories layers;
  if (!job.shape.IsMoe() || job.shape.dense_layers > 0) {
    layers.dense = MemoryOfLayer(job, false, false);
    layers.dense_again = MemoryOfLayer(job, false, true);
  }
  if (job.shape.IsMoe()) {
    layers.moe = MemoryOfLayer(job, true, false);
    layers.moe_again = MemoryOfLayer(job, true, true);
  }
  layers.towers = KeepingOfTowers(job);
  return layers;
}

RankMemory MemoryOfKeeping(const TrainingJob& job, const StageContent& stage,
                           size_t index, const StageKeeping& keeping) {
  return MemoryWithTowers(
      job, stage, index, keeping,
      stage.has_embedding ? KeepingOfTowers(job) : StageKeeping());
}

RankMemory MemoryOfStage(const TrainingJob& job, const LayerMemories& layers,
                         const StageContent& stage, size_t index) {
  if (job.strategy.implementation == Implementation::kEager) {
    RankMemory memory = StatesOf(job, stage);
    const RankMemory eager = EagerActivations(job);
    memory.activations = eager.activations;
    memory.logits = eager.logits;
    memory.working = eager.working;
    return memory;
  }
  StageKeeping keeping{.kept_bytes = KeptOfStage(job, layers, stage) -
                                     OffloadedBytes(job, layers, stage)};
  if (job.strategy.recomputation == Recomputation::kFull) {
    keeping.recomputed_bytes =
        (stage.moe_layers > 0 ? layers.moe : layers.dense).whole;
  }
  if (job.strategy.recomputation == Recomputation::kSelective) {
    keeping.recomputed_bytes =
        stage.moe_layers > 0
            ? layers.moe_again.whole - layers.moe_again.kept_bytes
            : layers.dense_again.whole - layers.dense_again.kept_bytes;
  }
  return MemoryWithTowers(job, stage, index, keeping, layers.towers);
}

double MostBytesOf(const TrainingJob& job, const LayerMemories& layers,
                   const std::vector<StageKind>& kinds, double limit) {
  double most = 0;
  for (const StageKind& kind : kinds) {
    if (most > limit) break;
    most = std::max(
        most, MemoryOfStage(job, layers, kind.content, kind.first).Total());
  }
  return most;
}

double SavedBytesOfLayer(const TrainingJob& job, bool is_moe) {
  const TrainingStrategy& s = job.strategy;
  if (s.implementation == Implementation::kFused) {
    return MemoryOfLayer(job, is_moe, true).kept_bytes;
  }
  if (s.recomputation == Recomputation::kNone) {
    return EagerLayerBytes(job.shape, s, is_moe);
  }
  return 2 * ResidualElements(s, job.shape);
}

const RankMemory& StepMemory::Worst() const {
  return *std::max_element(stages.begin(), stages.end(),
                           [](const RankMemory& a, const RankMemory& b) {
                             return a.Total() < b.Total();
                           });
}

StepMemory PredictStepMemory(const TrainingJob& job) {
  StepMemory memory;
  const std::vector<StageContent> stages = DivideLayers(job);
  const LayerMemories layers = MemoriesOfLayers(job);
  for (size_t i = 0; i < stages.size(); ++i) {
    memory.stages.push_back(MemoryOfStage(job, layers, stages[i], i));
  }
  return memory;
}

}  // namespace acplan::costmodel
