#include "costmodel/planning/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/layers/layer_times.h"
#include "costmodel/llm/fit.h"
#include "costmodel/planning/checked_block.h"

// The check follows the plan stage by stage, and shares with the planner what a block
// and a batch cost (BlockCosts, ComputeBatchTimes), but not what it is to hold a plan
// against:
//
// - What a block keeps and runs again comes from a walk over its layers
//   (checked_block.h): a value that the backward pass reads and that is not kept is
//   made again, and what its layer reads is, too. The planner has a list of operators
//   and tensors instead (block_operators.h), of which only the meaning of a policy's
//   bits is taken.
// - Microbatches in flight come from a schedule that is run, chunk by chunk, not from
//   the formula.
// - Memory is added up from the layers, and the seconds of a batch from those of a
//   pipeline for each policy, mixed by the blocks that have it.
//
// So a mistake would have to be made twice to stay unseen.

namespace acplan::costmodel {
namespace {

using Error = std::optional<std::string>;

bool IsClose(double found, double expected) {
  return std::abs(found - expected) <=
         1e-9 * std::max(std::abs(found), std::abs(expected));
}

Error Compare(std::string_view what, double found, double expected) {
  if (IsClose(found, expected)) return std::nullopt;
  return fmt::format("{} is {:.12g}, expected {:.12g}", what, found, expected);
}

// Chunks of microbatches that a stage has run forward and not yet backward, at
// most, as Megatron-LM orders them.
int64_t MostLiveChunks(const Execution& execution, int64_t stage) {
  const int64_t after = execution.pipeline_par - stage - 1;
  const int64_t chunks = execution.pipeline_interleaving;
  const int64_t all = execution.NumMicrobatches() * chunks;
  const int64_t warm_up = std::min(
      all,
      chunks == 1 ? after : 2 * after + (chunks - 1) * execution.pipeline_par);
  int64_t forward = 0;
  int64_t backward = 0;
  int64_t most = 0;
  while (backward < all) {
    if (forward < warm_up || (forward < all && forward - backward == warm_up)) {
      ++forward;
    } else {
      ++backward;
    }
    most = std::max(most, forward - backward);
  }
  return most;
}

// The bytes that the layers of a block hold, whatever it keeps.
struct BlockStates {
  double weights = 0;
  double working = 0;
  double gradients = 0;  // float32
  double optimizer = 0;
  double activation_gradients = 0;
};

BlockStates StatesOf(std::span<const Layer> layers) {
  BlockStates states;
  double before = 0;
  for (const Layer& layer : layers) {
    states.weights += layer.weight_bytes;
    if (!layer.reuses_activation) states.working += layer.activation_bytes;
    states.gradients += layer.weight_grad_unsharded_bytes;
    states.optimizer += layer.optimizer_bytes;
    states.activation_gradients = std::max(
        states.activation_gradients, before + layer.activation_grad_bytes);
    before = layer.activation_grad_bytes;
  }
  // The block begins with a fork of the residual stream.
  states.activation_gradients += layers.front().activation_bytes;
  return states;
}

// Blocks of a stage that keep the same.
struct Part {
  double blocks = 0;
  double bytes = 0;  // of a microbatch, a block
  BatchTimes times;  // as if all blocks were like these
  double seconds = 0;
};

double Sum(std::span<const Part> parts, double Part::*member) {
  double sum = 0;
  for (const Part& part : parts) sum += part.blocks * part.*member;
  return sum;
}

// A plan is held against its strategy, and what follows from it.
struct Checked {
  const Model& model;
  const System& system;
  Execution execution;  // that keeps everything
  Schedule schedule;
  LayerHardware hardware;
  Block block;
  BlockStates states;
  BlockCosts all_kept;
  std::vector<MadeValue> values;  // that the bits of a policy stand for
};

Execution KeepingAll(Execution execution) {
  execution.activation_recompute = Recompute::kNone;
  execution.seq_par_ag_redo = false;
  return execution;
}

std::vector<MadeValue> ValuesOf(const BlockOperators& listed) {
  std::vector<MadeValue> values;
  for (const KeepableTensor& tensor : listed.tensors) {
    const Operator& maker = listed.operators[tensor.maker];
    const MadeKind made = tensor.is_mask ? MadeKind::kMask
                          : maker.kind == Operator::Kind::kGather
                              ? MadeKind::kGathered
                              : MadeKind::kOutput;
    values.push_back({maker.layer, made});
  }
  return values;
}

Checked CheckedOf(const Model& model, const System& system,
                  const Execution& strategy) {
  const Execution execution = KeepingAll(strategy);
  const Corrections corrections = AllCorrections();
  Block block = BuildBlock(model, execution, corrections);
  const BlockStates states = StatesOf(block.layers());
  return {.model = model,
          .system = system,
          .execution = execution,
          .schedule = ScheduleOf(model, execution),
          .hardware = HardwareOf(system, execution, corrections),
          .block = std::move(block),
          .states = states,
          .all_kept = ComputeBlockCosts(model, system, execution, corrections),
          .values = ValuesOf(ListOperators(model, system, execution))};
}

std::string OfStage(size_t stage, std::string_view error) {
  return fmt::format("stage {}: {}", stage, error);
}

bool Exceeds(const Checked& checked, const MemoryNeeds& memory,
             double tolerance) {
  return memory.tier1 > checked.system.mem1.capacity * tolerance ||
         memory.tier2 > checked.system.mem2.capacity * tolerance;
}

bool CouldKeepLess(const Checked& checked, const StagePlan& stage,
                   const std::vector<Part>& parts) {
  const LayerReader reader(checked.block.layers(), checked.hardware);
  const double least = KeepingBlock(reader, {}).bytes();
  return Sum(parts, &Part::bytes) >
         static_cast<double>(stage.blocks) * least * (1 + 1e-9);
}

// Blocks are dealt out to the stages one by one.
Error CheckCounts(const Checked& checked, const StagePlan& stage,
                  int64_t index) {
  const int64_t stages = checked.execution.pipeline_par;
  const int64_t blocks = checked.model.num_blocks / stages +
                         (index < checked.model.num_blocks % stages ? 1 : 0);
  int64_t planned = 0;
  for (const PolicyShare& policy : stage.policies) {
    if (policy.blocks <= 0) {
      return fmt::format("{} blocks have a policy", policy.blocks);
    }
    if (uint64_t{policy.kept} >> checked.values.size() != 0) {
      return "keeps tensors that a block does not have";
    }
    planned += policy.blocks;
  }
  if (stage.stage != index || stage.blocks != blocks || planned != blocks) {
    return fmt::format(
        "is called {} and has {} blocks, {} of them with a policy; expected "
        "{}",
        stage.stage, stage.blocks, planned, blocks);
  }
  return Compare("microbatches in flight", stage.in_flight,
                 static_cast<double>(MostLiveChunks(checked.execution, index)) /
                     checked.schedule.chunks);
}

BatchTimes TimesOf(const Checked& checked, const BlockCosts& costs) {
  return ComputeBatchTimes(checked.system, checked.execution, checked.schedule,
                           costs, AllCorrections());
}

// Returns the seconds of a block, forward and backward.
double SecondsOf(const Checked& checked, const BatchTimes& times) {
  double seconds = 0;
  for (const PassTimes& pass : {times.forward_pass, times.backward_pass}) {
    seconds += checked.schedule.base_blocks *
                   (pass.base.without_offload + pass.base.offload_overhead) +
               (pass.edge.without_offload + pass.edge.offload_overhead);
  }
  return seconds / checked.schedule.blocks_per_chunk;
}

Part PartOf(const Checked& checked, const PolicyShare& policy) {
  std::set<MadeValue> kept;
  for (size_t i = 0; i < checked.values.size(); ++i) {
    if ((policy.kept >> i & 1) != 0) kept.insert(checked.values[i]);
  }
  const LayerReader reader(checked.block.layers(), checked.hardware);
  const KeepingBlock keeping(reader, std::move(kept));
  const Block block = keeping.Recomputed(checked.block);
  BlockCosts costs = SumLayers(block.layers(), checked.hardware, true);
  costs.forward_send_size = checked.all_kept.forward_send_size;
  costs.act_storage_space = keeping.bytes();
  Part part{.blocks = static_cast<double>(policy.blocks),
            .bytes = keeping.bytes(),
            .times = TimesOf(checked, costs)};
  part.seconds = SecondsOf(checked, part.times);
  return part;
}

std::vector<Part> PartsOf(const Checked& checked, const StagePlan& stage) {
  std::vector<Part> parts;
  for (const PolicyShare& policy : stage.policies) {
    parts.push_back(PartOf(checked, policy));
  }
  return parts;
}

Error CheckMemory(const Checked& checked, const StagePlan& stage,
                  const std::vector<Part>& parts) {
  const double blocks = static_cast<double>(stage.blocks);
  double most = 0;
  for (const Part& part : parts) most = std::max(most, part.bytes);
  const double live =
      static_cast<double>(MostLiveChunks(checked.execution, stage.stage)) /
      checked.schedule.chunks;
  const double kept = live * Sum(parts, &Part::bytes) - most;
  double tier1 = checked.states.working + checked.states.activation_gradients;
  double tier2 = 0;
  if (checked.execution.weight_offload) {
    tier1 += 2 * checked.states.weights;
    tier2 += blocks * checked.states.weights;
  } else {
    tier1 += blocks * checked.states.weights;
  }
  if (checked.execution.activations_offload) {
    tier1 += most;
    tier2 += kept;
  } else {
    tier1 += kept;
  }
  if (checked.execution.optimizer_offload) {
    tier1 += 2 * (checked.states.gradients + checked.states.optimizer);
    tier2 += blocks * (checked.states.gradients + checked.states.optimizer);
  } else {
    tier1 += blocks * (checked.states.gradients + checked.states.optimizer);
  }
  if (Error error = Compare("bytes of memory", stage.memory.tier1, tier1)) {
    return error;
  }
  return Compare("bytes of the second tier of memory", stage.memory.tier2,
                 tier2);
}

Error CheckSeconds(const Checked& checked, const StagePlan& stage,
                   const std::vector<Part>& parts) {
  const double seconds = Sum(parts, &Part::seconds);
  if (Error error =
          Compare("seconds of a microbatch", stage.seconds, seconds)) {
    return error;
  }
  const double recompute =
      seconds - static_cast<double>(stage.blocks) *
                    SecondsOf(checked, TimesOf(checked, checked.all_kept));
  // A difference is as exact as what it is of.
  if (std::abs(stage.recompute_seconds - recompute) > 1e-9 * seconds) {
    return Compare("seconds of recomputation", stage.recompute_seconds,
                   recompute);
  }
  return std::nullopt;
}

// Returns the seconds of a microbatch through a chunk of a stage, were its
// blocks like these in the mean. Whether a block that a stage lacks is the one
// that sends is not known; a half of it counts as that.
double ThroughStage(const Checked& checked, size_t stage,
                    const std::vector<Part>& parts) {
  const auto fewer = static_cast<size_t>(checked.model.num_blocks %
                                         checked.execution.pipeline_par);
  const double missing = fewer > 0 && stage >= fewer ? 1 : 0;
  const double sending =
      checked.schedule.blocks_per_chunk > 1 ? 1 - missing / 2 : 1 - missing;
  const double others =
      checked.schedule.blocks_per_chunk > 1
          ? checked.schedule.blocks_per_chunk - 1 - missing / 2
          : 0;
  double blocks = 0;
  double seconds = 0;
  for (const Part& part : parts) {
    blocks += part.blocks;
    for (const PassTimes& pass :
         {part.times.forward_pass, part.times.backward_pass}) {
      seconds += part.blocks *
                 (others * pass.base.Total() + sending * pass.edge.Total());
    }
  }
  return seconds / blocks;
}

// Communication of gradients that a mixture of blocks leaves exposed: what
// is left of each balance in the mean, or what sending slows down.
double Exposed(const Checked& checked, const std::vector<Part>& parts) {
  const DataParallelTimes& any = parts.front().times.data_parallel;
  if (checked.execution.data_par == 1 || !checked.execution.data_par_overlap) {
    return any.exposed;
  }
  double chunks_balance = 0;
  double tail_balance = 0;
  double chunk_backward = 0;
  for (const Part& part : parts) {
    const double share = part.blocks / checked.schedule.blocks;
    const PassTimes& pass = part.times.backward_pass;
    chunks_balance += share * part.times.data_parallel.chunk_balance;
    tail_balance += share * part.times.data_parallel.tail_balance;
    chunk_backward +=
        share *
        (checked.schedule.base_blocks * pass.base.Total() + pass.edge.Total());
  }
  const double usage =
      checked.system.networks[checked.execution.data_par_net].processor_usage;
  const double chunk = checked.schedule.blocks_per_chunk * any.block_time;
  const auto left = [&](double balance, double communication) {
    return balance > 0 ? balance : communication * usage;
  };
  double exposed = any.block_time + left(tail_balance, chunk - any.block_time);
  if (checked.schedule.chunks == 1) return exposed;
  const double others = checked.schedule.chunks - 1;
  if (checked.execution.data_par_net == checked.execution.pipeline_par_net) {
    const double round = checked.schedule.last_round != 0
                             ? checked.schedule.last_round
                             : checked.schedule.pipeline_par;
    const double met =
        std::round((chunk - std::fmod(chunk, chunk_backward)) / chunk_backward);
    chunks_balance +=
        others * std::min(met, round) * parts.front().times.backward_pass.send;
  }
  return exposed + left(chunks_balance, others * chunk);
}

double Total(const Checked& checked,
             const std::vector<std::vector<Part>>& stages) {
  const std::vector<Part>& first = stages.front();
  double total = 0;
  for (const Part& part : first) {
    total +=
        part.blocks * (part.times.total - part.times.data_parallel.exposed);
  }
  total = total / checked.schedule.blocks + Exposed(checked, first);
  for (size_t i = 1; i < stages.size(); ++i) {
    total +=
        ThroughStage(checked, i, stages[i]) - ThroughStage(checked, i, first);
  }
  return total;
}

// Returns what is wrong with a stage, whose blocks are `parts`.
Error CheckStage(const Checked& checked, const StrategyPlan& plan, size_t i,
                 const std::vector<Part>& parts) {
  const StagePlan& stage = plan.stages[i];
  if (Error error = CheckMemory(checked, stage, parts)) return error;
  if (Error error = CheckSeconds(checked, stage, parts)) return error;
  if (plan.verdict.Fits() && Exceeds(checked, stage.memory, 1 + 1e-9)) {
    return "takes more memory than there is";
  }
  if (!plan.verdict.Fits() && CouldKeepLess(checked, stage, parts)) {
    return "could keep less, so that the plan may fit";
  }
  return std::nullopt;
}

Error Check(const Checked& checked, const StrategyPlan& plan) {
  int64_t blocks = 0;
  std::vector<std::vector<Part>> parts;
  bool is_too_large = false;
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const StagePlan& stage = plan.stages[i];
    blocks += stage.blocks;
    if (Error error = CheckCounts(checked, stage, static_cast<int64_t>(i))) {
      return OfStage(i, *error);
    }
    parts.push_back(PartsOf(checked, stage));
    if (Error error = CheckStage(checked, plan, i, parts.back())) {
      return OfStage(i, *error);
    }
    is_too_large |= Exceeds(checked, stage.memory, 1 - 1e-9);
  }
  if (blocks != checked.model.num_blocks) {
    return fmt::format("stages have {} blocks, the model has {}", blocks,
                       checked.model.num_blocks);
  }
  if (!plan.verdict.Fits() && !is_too_large) {
    return "the plan is said not to fit, but does";
  }
  if (Error error = Compare("seconds of a batch", plan.times.total,
                            Total(checked, parts))) {
    return error;
  }
  if (plan.bound > plan.times.total * (1 + 1e-9)) {
    return fmt::format("the bound {:.12g} is above the plan's {:.12g} s",
                       plan.bound, plan.times.total);
  }
  return std::nullopt;
}

}  // namespace

Error FindPlanError(const Model& model, const System& system,
                    const Execution& execution, const StrategyPlan& plan) {
  const Verdict fit = CheckFit(model, system, execution);
  if (!fit.Fits()) {
    if (plan.verdict.rule == fit.rule && plan.stages.empty()) return {};
    return "a plan of a strategy that is none";
  }
  if (plan.stages.empty()) return "there are no stages";
  return Check(CheckedOf(model, system, execution), plan);
}

}  // namespace acplan::costmodel
