#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// The values that a search tries of each degree, ascending. Combinations that do not
// fit each other, the model or the batch are left out by CheckStrategy's and
// CheckStatedStrategy's rules.
struct StrategySpace {
  std::vector<int64_t> tensor = {};
  std::vector<int64_t> pipeline = {};
  std::vector<int64_t> chunks = {};
  // Of 1F1B and interleaved, the one that the chunks ask for.
  std::vector<PipelineSchedule> schedules = {};
  // Whether embedding, logits or both count as layers, too.
  bool has_uneven_stages = false;
  std::vector<int64_t> context = {};
  std::vector<ContextExchange> context_exchanges = {};
  std::vector<int64_t> expert = {};
  // Ranks that share an expert's matrices: 1, and so many as tensor parallelism has.
  bool has_expert_tensor = false;
  std::vector<int64_t> zero = {};
  // Whether what is sharded is so inside of NVLink's domains, too (HSDP).
  bool has_copies = false;
  // Where DualPipe runs, the exchange of tokens runs beside another microbatch.
  bool dual_pipe_overlaps = true;
  std::vector<int64_t> microbatch = {};
  // Whether activations of layers go to the host where nothing runs again and there is
  // no pipeline (as Megatron-Core has it), all numbers of layers.
  bool has_offload = false;
  // kFull stands for all numbers of layers of a stage that are recomputed, unless a
  // number above 0 is given.
  std::vector<Recomputation> recomputation = {};
  int64_t full_layers = 0;
};

// All of it: tensor parallelism within NVLink's domain, pipelines and chunks whose
// product divides the layers, or the layers with embedding, logits or both; the
// schedules that the software has (SchedulesOf); context parallelism by rings or
// all-to-all (all_gather is never faster than a ring here); expert parallelism and
// expert tensor parallelism; ZeRO 0 to 3, over all ranks or NVLink's domains;
// microbatches of 1 to 16 sequences; recomputation of nothing, of the attention
// core, by torchtitan's rule, of the first N layers of each stage, and by the best
// plan of each stage. Offload is tried where it is asked for.
StrategySpace WholeSpace(const TrainingJob& job);

// The schedules of pipelines that a generation of software runs: torchtitan has
// zero bubbles, too.
std::vector<PipelineSchedule> SchedulesOf(const SoftwareStack& stack);
// All that the model knows.
std::vector<PipelineSchedule> EverySchedule();

// Strategies without pipeline and data parallelism, one for each combination of what
// UnitTimes depend on.
std::vector<TrainingStrategy> UnitsOfSpace(const TrainingJob& job,
                                           const StrategySpace& space);

// A division into stages, and how they run.
struct PipelineLayout {
  int64_t pipeline = 1;
  int64_t chunks = 1;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  bool counts_embedding = false;
  bool counts_logits = false;
  std::vector<StageKind> kinds = {};
};
std::vector<PipelineLayout> LayoutsOfSpace(TrainingJob job,
                                           const StrategySpace& space);

// The unit with the layout; how data is sharded is chosen later.
TrainingStrategy WithLayout(TrainingStrategy unit,
                            const PipelineLayout& layout);

// Whether a unit and a layout are of one strategy: DualPipe's overlap is part of
// units.
bool IsOfUnit(const TrainingStrategy& unit, const PipelineLayout& layout,
              const TrainingJob& job, const StrategySpace& space);

struct Sharding {
  int64_t zero = 0;
  int64_t copies = 1;  // of what is sharded
};
TrainingStrategy WithSharding(TrainingStrategy strategy, Sharding sharding);

// The ways of sharding with which a strategy is legal.
std::vector<Sharding> ShardingsOf(const TrainingStrategy& strategy,
                                  const TrainingJob& job,
                                  const StrategySpace& space);

}  // namespace acplan::costmodel
