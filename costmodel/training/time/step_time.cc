// An iteration. Each stage of the pipeline takes a time for a microbatch. The slowest sets
// the pace, and the others' times fill and drain the pipeline (pipeline_schedule.h):
//
//     microbatches x slowest + bubble.
//
// Offloaded activations go to the host beside the forward pass of the stage, and come back
// beside its backward pass; the part that takes longer than these passes is exposed.
//
// The optimizer's states may wait on the host. An update then takes at least the time in which
// they come; others leave at the same time. Nothing of it runs beside the backward pass, as
// the norm of all gradients is known after it.
//
// Inside of a stage the host launches operators while the GPU runs earlier ones; the slower
// of both counts. Gradients and parameters travel beside the first and last microbatch if
// the strategy overlaps them.
#include "costmodel/training/time/step_time.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <vector>

#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/layer/tower_operations.h"
#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/strategy/pipeline_schedule.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

// Adam in float32 reads the gradient, two moments and the master weight, and writes all
// except the gradient, and the weight in 16 bits; the norm reads gradients once more.
constexpr double kOptimizerBytes = 34;

// Adds the communication of full sharding: a layer's parameters are gathered before each
// pass while the previous layer computes, and its gradients are scattered after it.
PassTime Sharded(PassTime pass, double exchange_seconds,
                 const Cluster& cluster) {
  if (exchange_seconds == 0) return pass;
  const double run = pass.Total();
  pass.compute +=
      cluster.constants.interference * std::min(exchange_seconds, run);
  pass.communication.sharded +=
      std::max(0.0, exchange_seconds - cluster.stack.hidden_share * run);
  return pass;
}

// The collectives of all data-parallel ranks, for elements of `width` bytes.
class DataTraffic {
 public:
  DataTraffic(const RankParameters& parameters, const TrainingJob& job)
      : parameters_(parameters),
        job_(job),
        dense_(DenseDataGroups(job.strategy)),
        experts_(ExpertDataGroups(job.strategy)) {}

  // Returns the seconds of a collective among the ranks that share parameters.
  double Seconds(CollectiveKind kind, double width) const {
    return CollectiveSeconds(kind, width * parameters_.dense, dense_.shards,
                             job_) +
           CollectiveSeconds(kind, width * parameters_.experts, experts_.shards,
                             job_);
  }
  // Returns the seconds to bring gradients to the ranks that use them: each rank of a group
  // has its part, which the groups that hold copies add up (HSDP).
  double ScatterSeconds(double width) const {
    return Seconds(CollectiveKind::kReduceScatter, width) +
           AddUp(width * parameters_.dense, dense_) +
           AddUp(width * parameters_.experts, experts_);
  }

 private:
  double AddUp(double bytes, const DataGroups& groups) const {
    return CollectiveSeconds(CollectiveKind::kAllReduce,
                             bytes / static_cast<double>(groups.shards.size),
                             groups.replicas, job_);
  }

  const RankParameters parameters_;
  const TrainingJob& job_;
  const DataGroups dense_;
  const DataGroups experts_;
};

// Adds the exchange of a unit's sharded parameters, of which a rank computes with `bytes` and
// trains `trained` elements.
UnitTime WithSharding(UnitTime unit, const TrainingJob& job,
                      const RankParameters& bytes,
                      const RankParameters& trained) {
  const TrainingStrategy& s = job.strategy;
  const DataTraffic weights(bytes, job);
  const DataTraffic gradients(trained, job);
  const double gather = weights.Seconds(CollectiveKind::kAllGather, 1);
  const double scatter = gradients.ScatterSeconds(s.gradient_reduce_bytes);
  unit.forward = Sharded(unit.forward, gather, job.cluster);
  unit.backward =
      Sharded(unit.backward, (s.zero == 3 ? gather : 0) + scatter, job.cluster);
  return unit;
}

UnitTime LayerWithSharding(const UnitTime& layer, const TrainingJob& job,
                           bool is_moe) {
  if (job.strategy.fsdp <= 1) return layer;
  return WithSharding(layer, job, LayerBytesOfRank(job, is_moe),
                      TrainedLayerParametersOfRank(job, is_moe));
}

// A tower without images does not run, so that nothing of it is gathered.
UnitTime TowersWithSharding(const UnitTime& towers, const TrainingJob& job) {
  if (job.strategy.fsdp <= 1 || !RunsTowers(job) || job.shape.towers.empty()) {
    return towers;
  }
  return WithSharding(towers, job, {.dense = 2 * TowerParametersOfRank(job)},
                      {.dense = TrainedTowerParametersOfRank(job)});
}

struct StageTime {
  UnitTime unit = {};
  RankParameters trained = {};
};

class StepPredictor {
 public:
  StepPredictor(const TrainingJob& job, const UnitTimes& units)
      : job_(job), units_(units) {
    if (job.strategy.offloaded_layers > 0) memories_ = MemoriesOfLayers(job);
    const bool has_dense = !job.shape.IsMoe() || job.shape.dense_layers > 0;
    if (has_dense) dense_ = LayerWithSharding(units.dense, job, false);
    if (job.shape.IsMoe()) moe_ = LayerWithSharding(units.moe, job, true);
    towers_ = TowersWithSharding(units.towers, job);
  }

  StepTime Predict(const std::vector<StageKind>& stages,
                   std::span<const PassTime> recomputation) const;

 private:
  StageTime TimeOfStage(const StageContent& stage) const;
  UnitTime WithOffload(UnitTime unit, const StageContent& stage) const;
  double MessagesOfMicrobatch() const;
  double DataSeconds(const StageTime& stage) const;
  double OptimizerSeconds(const RankParameters& parameters) const;
  // Returns the seconds in which bytes go to the host, or come back.
  double HostSeconds(double bytes) const;

  const TrainingJob& job_;
  const UnitTimes& units_;
  UnitTime dense_ = {};
  UnitTime moe_ = {};
  UnitTime towers_ = {};
  LayerMemories memories_ = {};  // set if some layers are offloaded
};

UnitTime StepPredictor::WithOffload(UnitTime unit,
                                    const StageContent& stage) const {
  if (job_.strategy.offloaded_layers == 0) return unit;
  const double seconds = HostSeconds(OffloadedBytes(job_, memories_, stage));
  unit.forward.communication.offload =
      std::max(0.0, seconds - unit.forward.Total());
  unit.backward.communication.offload = std::max(
      0.0, seconds - unit.backward.Total() - unit.recomputation.Total());
  return unit;
}

StageTime StepPredictor::TimeOfStage(const StageContent& stage) const {
  StageTime time{.trained = TrainedStageParametersOfRank(job_, stage)};
  if (stage.dense_layers > 0) {
    time.unit += dense_ * static_cast<double>(stage.dense_layers);
  }
  if (stage.moe_layers > 0) {
    time.unit += moe_ * static_cast<double>(stage.moe_layers);
  }
  if (job_.strategy.full_layers > 0 || job_.strategy.every_layers > 0) {
    const double recomputed_layers =
        static_cast<double>(RecomputedLayers(job_.strategy, stage.Layers()));
    const double layers =
        static_cast<double>(std::max<int64_t>(1, stage.Layers()));
    time.unit.recomputation =
        time.unit.recomputation * (recomputed_layers / layers);
  }
  if (stage.has_embedding) {
    time.unit += units_.embedding;
    time.unit += towers_;
  }
  if (stage.has_logits) {
    time.unit += units_.logits * static_cast<double>(stage.logits);
  }
  time.unit = WithOffload(time.unit, stage);
  return time;
}

// Returns the seconds of the messages of a microbatch: each chunk sends an activation
// forward and a gradient back.
double StepPredictor::MessagesOfMicrobatch() const {
  const TrainingStrategy& s = job_.strategy;
  if (s.pipeline == 1) return 0;
  const double rows = static_cast<double>(s.microbatch * s.sequence) /
                      static_cast<double>(s.context * s.tensor);
  const double bytes = 2 * rows * static_cast<double>(job_.shape.hidden);
  return 2 * static_cast<double>(s.chunks) * MessageSeconds(bytes, job_);
}

double StepPredictor::DataSeconds(const StageTime& stage) const {
  const TrainingStrategy& s = job_.strategy;
  if (s.fsdp > 1) return 0;
  const double hidden = job_.cluster.stack.hidden_share;
  const DataTraffic traffic(stage.trained, job_);
  if (s.zero == 0) {
    const double all =
        traffic.Seconds(CollectiveKind::kAllReduce, s.gradient_reduce_bytes);
    if (!s.overlaps_data) return all;
    return std::max(.1 * all, all - hidden * stage.unit.backward.Total());
  }
  const double scatter = traffic.ScatterSeconds(s.gradient_reduce_bytes);
  const double gather = traffic.Seconds(CollectiveKind::kAllGather, 2);
  if (!s.overlaps_data) return scatter + gather;
  return std::max(.1 * scatter,
                  scatter - hidden * stage.unit.backward.Total()) +
         std::max(.1 * gather, gather - hidden * stage.unit.forward.Total());
}

// Returns the seconds of an update. If states wait on the host, parts come and leave beside
// the update of another one; only the first to come and the last to leave have none beside.
double StepPredictor::OptimizerSeconds(const RankParameters& p) const {
  const TrainingStrategy& s = job_.strategy;
  const double elements = UpdatedElements(s, p);
  const double update = TrafficSeconds(kOptimizerBytes * elements, job_);
  if (!s.offloads_states) return update;
  const double part = std::min(elements, kPartElements);
  return std::max(update, HostSeconds(s.optimizer_bytes * elements)) +
         2 * HostSeconds(s.optimizer_bytes * part);
}

double StepPredictor::HostSeconds(double bytes) const {
  return bytes /
         (job_.cluster.gpu.host_rate * job_.cluster.constants.host_link_share);
}

StepTime StepPredictor::Predict(const std::vector<StageKind>& stages,
                                std::span<const PassTime> recomputation) const {
  const TrainingStrategy& s = job_.strategy;
  UnitTime unit;  // that of the slowest stage
  double slowest = -1;
  std::vector<ScheduledStages> scheduled;
  StepTime time;
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageKind& kind = stages[i];
    StageTime stage = TimeOfStage(kind.content);
    if (!recomputation.empty()) stage.unit.recomputation = recomputation[i];
    const double seconds = stage.unit.Total();
    scheduled.push_back({.total = seconds,
                         .backward = stage.unit.backward.Total(),
                         .weights = stage.unit.backward.weights,
                         .count = static_cast<double>(kind.count)});
    time.data = std::max(time.data, DataSeconds(stage));
    time.optimizer = std::max(time.optimizer, OptimizerSeconds(stage.trained));
    if (seconds <= slowest) continue;
    slowest = seconds;
    unit = stage.unit;
  }
  const double count = PassesOfStage(s);
  PassTime all = unit.forward;
  all += unit.backward;
  all += unit.recomputation;
  time.recompute = count * unit.recomputation.compute;
  time.compute = count * all.compute;
  time.exposed = all.communication * count;
  time.messages = count * MessagesOfMicrobatch();
  time.communication = time.exposed.Total() + time.messages;
  // The sums are in another order, so the GPU's wait could come out slightly negative.
  const double busy = all.compute + all.communication.Total();
  time.host = count * std::max(0.0, slowest - busy);
  time.bubble = BubbleSeconds(s, scheduled);
  time.other = job_.cluster.stack.iteration_seconds;
  return time;
}

StepTime Predicted(const TrainingJob& job) {
  const UnitTimes units = TimesOfUnits(job);
  return StepPredictor(job, units)
      .Predict(KindsOfStages(DivideLayers(job)), {});
}

}  // namespace

StepTime CombineStepTime(const TrainingJob& job, const UnitTimes& units,
                         const std::vector<StageKind>& stages,
                         std::span<const PassTime> recomputation) {
  return StepPredictor(job, units).Predict(stages, recomputation);
}

TrainingJob WithFastestMicrobatch(const TrainingJob& job) {
  if (job.strategy.microbatch > 0) return job;
  std::optional<TrainingJob> best;
  double least = 0;
  const int64_t sequences = job.strategy.global_batch / job.strategy.Data();
  for (int64_t size = 1; size <= std::min<int64_t>(8, sequences); size *= 2) {
    if (sequences % size != 0) continue;
    TrainingJob candidate = job;
    candidate.strategy.microbatch = size;
    const double seconds = Predicted(candidate).Total();
    if (!best || seconds < least) {
      best = candidate;
      least = seconds;
    }
  }
  return *best;
}

void RequirePrecision(const TrainingJob& job) {
  if (job.cluster.gpu.Rate(job.strategy.precision) > 0) return;
  throw InputError(
      fmt::format("precision: {} has no products in this precision; use bf16",
                  job.cluster.gpu.name));
}

StepTime PredictStepTime(const TrainingJob& job) {
  RequirePrecision(job);
  const TrainingJob complete_job = WithFastestMicrobatch(job);
  return Predicted(complete_job);
}

}  // namespace acplan::costmodel
