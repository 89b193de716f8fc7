#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// The values of each degree that a search tries, ascending. Combinations that are
// incompatible with each other, the model or the batch are left out by the rules of
// CheckStrategy and CheckStatedStrategy.
struct StrategySpace {
  std::vector<int64_t> tensor = {};
  std::vector<int64_t> pipeline = {};
  std::vector<int64_t> chunks = {};
  // If both 1F1B and interleaved are given, each is tried with the chunks that it requires.
  std::vector<PipelineSchedule> schedules = {};
  // If true, embedding, logits or both may count as layers, too.
  bool has_uneven_stages = false;
  std::vector<int64_t> context = {};
  std::vector<ContextExchange> context_exchanges = {};
  std::vector<int64_t> expert = {};
  // If true, the ranks that share an expert's matrices are 1, or as many as tensor
  // parallelism has.
  bool has_expert_tensor = false;
  std::vector<int64_t> zero = {};
  // If true, sharding inside of NVLink's domains is tried, too (HSDP).
  bool has_copies = false;
  // With DualPipe, the exchange of tokens runs beside another microbatch.
  bool dual_pipe_overlaps = true;
  std::vector<int64_t> microbatch = {};
  // If true, activations of any number of layers may go to the host, if nothing runs again
  // and there is no pipeline (as in Megatron-Core).
  bool has_offload = false;
  // If true, the optimizer's states may wait on the host.
  bool has_states_offload = false;
  // kFull stands for all numbers of recomputed layers of a stage, unless full_layers is
  // above 0.
  std::vector<Recomputation> recomputation = {};
  int64_t full_layers = 0;
};

// Returns the whole space: tensor parallelism within NVLink's domain; pipelines and chunks
// whose product divides the layers, or the layers with embedding, logits or both; the
// schedules that the software has (SchedulesOf); context parallelism by rings or all-to-all
// (all_gather is never faster than a ring here); expert parallelism and expert tensor
// parallelism; ZeRO 0 to 3, over all ranks or NVLink's domains; microbatches of 1 to 16
// sequences; recomputation of nothing, of the attention core, by torchtitan's rule, of the
// first N layers of each stage, and by the best plan of each stage. Offload is tried only
// on request.
StrategySpace WholeSpace(const TrainingJob& job);

// Returns the schedules of pipelines that a generation of software runs: torchtitan also
// has zero bubbles.
std::vector<PipelineSchedule> SchedulesOf(const SoftwareStack& stack);
// Returns all schedules that the model knows.
std::vector<PipelineSchedule> EverySchedule();

// Returns strategies without pipeline and data parallelism, one for each combination of the
// values that UnitTimes depend on.
std::vector<TrainingStrategy> UnitsOfSpace(const TrainingJob& job,
                                           const StrategySpace& space);

// A division into stages, and the schedule in which they run.
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

// Returns the unit with the layout. Sharding is chosen later.
TrainingStrategy WithLayout(TrainingStrategy unit,
                            const PipelineLayout& layout);

// Returns whether a unit and a layout can be combined: DualPipe's overlap is a property of
// units.
bool IsOfUnit(const TrainingStrategy& unit, const PipelineLayout& layout,
              const TrainingJob& job, const StrategySpace& space);

struct Sharding {
  int64_t zero = 0;
  int64_t copies = 1;  // the copies of sharded values
  bool offloads_states = false;
};
TrainingStrategy WithSharding(TrainingStrategy strategy, Sharding sharding);

// Returns the ways of sharding with which a strategy is legal, and of each that with states
// on the host if the space has it.
std::vector<Sharding> ShardingsOf(const TrainingStrategy& strategy,
                                  const TrainingJob& job,
                                  const StrategySpace& space);

}  // namespace acplan::costmodel
