// The rules here are those of CheckStrategy and CheckStatedStrategy, cheapest first and
// without messages. A test checks that both leave the same strategies.
#include "costmodel/training/settings/strategy_space.h"

#include <algorithm>
#include <set>
#include <span>

namespace acplan::costmodel {
namespace {

using enum PipelineSchedule;

std::vector<int64_t> DivisorsOf(int64_t number) {
  std::vector<int64_t> divisors;
  for (int64_t i = 1; i <= number / i; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) divisors.push_back(number / i);
  }
  std::ranges::sort(divisors);
  return divisors;
}

bool IsContextLegal(const ModelShape& shape, const TrainingStrategy& s) {
  if (s.sequence % s.context != 0) return false;
  if (s.context == 1) return s.context_exchange == ContextExchange::kRing;
  return s.sequence % (2 * s.context) == 0 &&
         s.attention != AttentionKernel::kUnfused &&
         (s.context_exchange != ContextExchange::kAllToAll ||
          DividesHeads(shape, s));
}

bool AreExpertsLegal(const ModelShape& shape, const TrainingStrategy& s) {
  if (!shape.IsMoe()) return s.expert == 1 && s.expert_tensor == 1;
  return shape.experts % s.expert == 0 &&
         shape.expert_feedforward % s.expert_tensor == 0 &&
         (!s.overlaps_expert || s.expert > 1);
}

// Returns whether the implementation allows a strategy: modules of Hugging Face run on one
// GPU, with full recomputation or none.
bool IsImplementationLegal(const ModelShape& shape, const TrainingStrategy& s) {
  return s.implementation == Implementation::kFused ||
         (shape.HasUniformLayers() && shape.attention_gate == 0 &&
          s.tensor * s.pipeline * s.context * s.expert == 1 &&
          (s.recomputation == Recomputation::kNone ||
           s.recomputation == Recomputation::kFull) &&
          s.offloaded_layers == 0);
}

// Returns whether recomputation and context parallelism are modelled for a model's mixers.
bool AreMixersLegal(const ModelShape& shape, const TrainingStrategy& s) {
  return shape.HasUniformLayers() ||
         (s.context == 1 && s.recomputation != Recomputation::kPlan &&
          s.recomputation != Recomputation::kSelective &&
          (s.attention != AttentionKernel::kUnfused || shape.IsHybrid()));
}

// Checks the rules of the degrees that a unit shares.
bool IsUnitLegal(const ModelShape& shape, const TrainingStrategy& s) {
  if (s.gpus % (s.tensor * s.context) != 0) return false;
  if (shape.heads % s.tensor != 0 || shape.feedforward % s.tensor != 0) {
    return false;
  }
  if (!shape.IsLatent() && shape.kv_heads % s.tensor != 0 &&
      s.tensor % shape.kv_heads != 0) {
    return false;
  }
  if (!IsContextLegal(shape, s)) return false;
  if (s.sequence_parallel && s.sequence / s.context % s.tensor != 0) {
    return false;
  }
  return AreExpertsLegal(shape, s);
}

bool IsScheduleLegal(const TrainingStrategy& s) {
  const int64_t microbatches = s.Microbatches();
  if (s.schedule == kDualPipe) return microbatches >= 2 * s.pipeline;
  return s.chunks == 1 || IsVShaped(s.schedule) ||
         microbatches % s.pipeline == 0;
}

// Checks the rules of the other degrees, together with the unit's.
bool IsLegal(const TrainingStrategy& s, const ModelShape& shape) {
  if (shape.HasEncoder() && !UnmodelledWithEncoder(s).empty()) return false;
  if (!IsImplementationLegal(shape, s)) return false;
  if (s.offloaded_layers > (shape.layers + s.pipeline - 1) / s.pipeline) {
    return false;
  }
  if (s.gpus % (s.tensor * s.context * s.pipeline) != 0) return false;
  if (s.gpus % (s.pipeline * s.expert * s.expert_tensor) != 0) return false;
  if (s.global_batch % s.Data() != 0) return false;
  if (s.global_batch / s.Data() % s.microbatch != 0) return false;
  return IsScheduleLegal(s);
}

// Returns the number of groups whose ranks NVLink joins; 1 if sharding is over all ranks.
int64_t CopiesInDomains(const TrainingStrategy& s, const TrainingJob& job) {
  const int64_t ranks = s.Data() * s.context;
  const int64_t ranks_inside = job.cluster.domain / s.tensor;
  if (ranks_inside <= 1 || ranks_inside >= ranks || ranks % ranks_inside != 0)
    return 1;
  const int64_t copies = ranks / ranks_inside;
  return s.ExpertData() % copies == 0 ? copies : 1;
}

// Returns whether a schedule divides stages into this number of chunks.
bool HasChunks(PipelineSchedule schedule, int64_t pipeline, int64_t chunks) {
  switch (schedule) {
    case kOneForwardOneBackward:
      return chunks == 1;
    case kInterleaved:
      return chunks > 1 && pipeline > 1;
    case kZeroBubble:
      return pipeline > 1;
    case kZeroBubbleV:
    case kHalfV:
    case kMinV:
      return pipeline > 1 && chunks == 2;
    case kDualPipe:
      return pipeline % 2 == 0 && chunks == 1;
  }
  return false;
}

// Returns all divisions of the layers among parts. If parts divide the layers without
// embedding and logits, these do not count unless requested; otherwise both count.
std::vector<PipelineLayout> Divisions(PipelineLayout layout, int64_t layers,
                                      bool has_uneven) {
  const int64_t parts = layout.pipeline * layout.chunks;
  if (parts > layers + 2) return {};
  const bool is_even = layers % parts == 0;
  std::vector<PipelineLayout> divisions;
  if (is_even || (layers + 2) % parts == 0) divisions.push_back(layout);
  if (!has_uneven || parts == 1) return divisions;
  for (const bool embedding : {false, true}) {
    for (const bool logits : {false, true}) {
      const int64_t counted_ends = (embedding ? 1 : 0) + (logits ? 1 : 0);
      if (counted_ends == 0 || (layers + counted_ends) % parts != 0) continue;
      if (counted_ends == 2 && !is_even) continue;  // listed already
      layout.counts_embedding = embedding;
      layout.counts_logits = logits;
      divisions.push_back(layout);
    }
  }
  return divisions;
}

// Returns whether a layout has the same stages as an earlier one.
bool HasSameStages(std::span<const PipelineLayout> layouts,
                   const PipelineLayout& layout) {
  return std::ranges::any_of(layouts, [&](const PipelineLayout& other) {
    return other.pipeline == layout.pipeline && other.chunks == layout.chunks &&
           other.schedule == layout.schedule && other.kinds == layout.kinds;
  });
}

class UnitLister {
 public:
  UnitLister(const TrainingJob& job, const StrategySpace& space)
      : job_(job), space_(space) {}

  std::vector<TrainingStrategy> Run() {
    TrainingStrategy s = job_.strategy;
    s.pipeline = s.chunks = 1;
    s.full_layers = 0;
    for (const int64_t tensor : space_.tensor) {
      s.tensor = tensor;
      s.sequence_parallel = tensor > 1;
      s.overlaps_tensor = job_.strategy.overlaps_tensor && tensor > 1;
      for (const int64_t context : space_.context) {
        s.context = context;
        AddContext(s);
      }
    }
    return std::move(units_);
  }

 private:
  void AddContext(TrainingStrategy s) {
    for (const ContextExchange exchange : space_.context_exchanges) {
      // Without context parallelism nothing is exchanged.
      const bool is_first = exchange == space_.context_exchanges.front();
      if (s.context == 1 && !is_first) continue;
      s.context_exchange = s.context == 1 ? ContextExchange::kRing : exchange;
      for (const int64_t expert : space_.expert) {
        s.expert = expert;
        AddExpert(s);
      }
    }
  }

  void AddExpert(TrainingStrategy s) {
    std::set<int64_t> expert_tensor = {job_.strategy.expert_tensor};
    if (space_.has_expert_tensor) expert_tensor = {1, s.tensor};
    for (const int64_t degree : expert_tensor) {
      s.expert_tensor = degree;
      for (const bool overlaps : OverlapsOf(s)) {
        s.overlaps_expert = overlaps;
        if (IsUnitLegal(job_.shape, s)) AddMicrobatches(s);
      }
    }
  }

  std::set<bool> OverlapsOf(const TrainingStrategy& s) const {
    const bool own = job_.strategy.overlaps_expert && s.expert > 1;
    std::set<bool> overlaps = {own};
    if (s.expert > 1 && space_.dual_pipe_overlaps &&
        std::ranges::find(space_.schedules, kDualPipe) !=
            space_.schedules.end()) {
      overlaps.insert(true);
    }
    return overlaps;
  }

  void AddMicrobatches(TrainingStrategy s) {
    for (const int64_t microbatch : space_.microbatch) {
      for (const Recomputation recomputation : space_.recomputation) {
        s.microbatch = microbatch;
        s.recomputation = recomputation;
        if (recomputation == Recomputation::kPlan && s.offloaded_layers > 0) {
          continue;
        }
        s.parts.clear();
        if (recomputation == Recomputation::kSelective) {
          s.parts = job_.strategy.parts;
          if (s.parts.empty()) s.parts = {LayerPart::kCoreAttention};
        }
        if (IsImplementationLegal(job_.shape, s) &&
            AreMixersLegal(job_.shape, s)) {
          units_.push_back(s);
        }
      }
    }
  }

  const TrainingJob& job_;
  const StrategySpace& space_;
  std::vector<TrainingStrategy> units_ = {};
};

}  // namespace

std::vector<PipelineSchedule> EverySchedule() {
  return {kOneForwardOneBackward,
          kInterleaved,
          kZeroBubble,
          kZeroBubbleV,
          kHalfV,
          kMinV,
          kDualPipe};
}

std::vector<PipelineSchedule> SchedulesOf(const SoftwareStack& stack) {
  std::vector<PipelineSchedule> schedules = {kOneForwardOneBackward,
                                             kInterleaved};
  if (stack.name.starts_with("torchtitan")) {
    schedules.push_back(kZeroBubble);
    schedules.push_back(kZeroBubbleV);
  }
  return schedules;
}

StrategySpace WholeSpace(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  StrategySpace space;
  space.pipeline = space.context = DivisorsOf(s.gpus);
  for (const int64_t tensor : space.pipeline) {
    if (tensor <= job.cluster.domain) space.tensor.push_back(tensor);
  }
  for (int64_t chunks = 1; chunks <= 16; ++chunks) {
    space.chunks.push_back(chunks);
  }
  space.schedules = SchedulesOf(job.cluster.stack);
  space.has_uneven_stages = true;
  space.context_exchanges = {ContextExchange::kRing,
                             ContextExchange::kAllToAll};
  space.expert = job.shape.IsMoe() ? DivisorsOf(job.shape.experts)
                                   : std::vector<int64_t>{1};
  space.has_expert_tensor = job.shape.IsMoe();
  space.zero = {0, 1, 2, 3};
  space.has_copies = true;
  space.microbatch = {1, 2, 4, 8, 16};
  space.recomputation = {Recomputation::kNone, Recomputation::kSelective,
                         Recomputation::kOperators, Recomputation::kFull,
                         Recomputation::kPlan};
  return space;
}

std::vector<TrainingStrategy> UnitsOfSpace(const TrainingJob& job,
                                           const StrategySpace& space) {
  return UnitLister(job, space).Run();
}

std::vector<PipelineLayout> LayoutsOfSpace(TrainingJob job,
                                           const StrategySpace& space) {
  const int64_t layers = job.shape.layers + job.shape.mtp_layers;
  std::vector<PipelineLayout> layouts;
  for (const int64_t pipeline : space.pipeline) {
    if (job.strategy.gpus % pipeline != 0) continue;
    for (const int64_t chunks : space.chunks) {
      for (const PipelineSchedule schedule : space.schedules) {
        if (!HasChunks(schedule, pipeline, chunks)) continue;
        for (PipelineLayout& layout :
             Divisions({pipeline, chunks, schedule}, layers,
                       space.has_uneven_stages)) {
          job.strategy = WithLayout(job.strategy, layout);
          layout.kinds = KindsOfStages(DivideLayers(job));
          if (!HasSameStages(layouts, layout)) {
            layouts.push_back(std::move(layout));
          }
        }
      }
    }
  }
  return layouts;
}

TrainingStrategy WithLayout(TrainingStrategy unit,
                            const PipelineLayout& layout) {
  unit.pipeline = layout.pipeline;
  unit.chunks = layout.chunks;
  unit.schedule = layout.schedule;
  unit.counts_embedding = layout.counts_embedding;
  unit.counts_logits = layout.counts_logits;
  return unit;
}

bool IsOfUnit(const TrainingStrategy& unit, const PipelineLayout& layout,
              const TrainingJob& job, const StrategySpace& space) {
  const bool is_dual = layout.schedule == kDualPipe && space.dual_pipe_overlaps;
  const bool overlaps =
      unit.expert > 1 && (job.strategy.overlaps_expert || is_dual);
  return unit.overlaps_expert == overlaps;
}

TrainingStrategy WithSharding(TrainingStrategy s, Sharding sharding) {
  s.zero = sharding.zero;
  s.optimizer_copies = sharding.copies;
  s.fsdp = s.zero >= 2 ? s.Data() * s.context / sharding.copies : 0;
  s.offloads_states = sharding.offloads_states;
  return s;
}

std::vector<Sharding> ShardingsOf(const TrainingStrategy& s,
                                  const TrainingJob& job,
                                  const StrategySpace& space) {
  std::vector<Sharding> shardings;
  if (!IsLegal(s, job.shape)) return shardings;
  const int64_t stated = job.strategy.optimizer_copies;
  const bool fits_stated =
      s.Data() * s.context % stated == 0 && s.ExpertData() % stated == 0;
  const int64_t domain_copies = space.has_copies ? CopiesInDomains(s, job) : 1;
  const auto add = [&](int64_t zero, int64_t copies) {
    shardings.push_back({zero, copies, job.strategy.offloads_states});
    if (space.has_states_offload) shardings.push_back({zero, copies, true});
  };
  for (const int64_t zero : space.zero) {
    if (zero >= 2 && s.Data() == 1) continue;
    if (zero == 2 && s.pipeline > 1) continue;
    if (stated == 1) add(zero, 1);
    if (zero == 0) continue;
    if (stated > 1 && fits_stated) add(zero, stated);
    if (domain_copies > 1) add(zero, domain_copies);
  }
  return shardings;
}

}  // namespace acplan::costmodel
