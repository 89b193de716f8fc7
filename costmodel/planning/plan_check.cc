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

// What a layer makes: its output, the mask beside it, or its gathered input.
enum class Made : uint8_t { kOutput, kMask, kGathered };
using Value = std::pair<int, Made>;  // by the layer that makes it
constexpr Value kInput = {kBlockInput, Made::kOutput};

// What a layer would have kept.
struct Reading {
  Value value;
  double bytes = 0;
  bool is_for_backward = true;
};

// The layers of a block, and what they read of each other.
class Reader {
 public:
  Reader(std::span<const Layer> layers, const LayerHardware& hardware)
      : layers_(layers), hardware_(hardware) {}

  std::span<const Layer> layers() const { return layers_; }
  int size() const { return static_cast<int>(layers_.size()); }

  bool Gathers(int i) const {
    return layers_[i].comm.kind == LayerComm::Kind::kOverlapped &&
           !layers_[i].comm.is_conjugate &&
           hardware_.comm_type == TensorCommType::kScattered;
  }

  // What a layer reads, before it gathers that.
  Value Read(int i, int which) const {
    const int source = layers_[i].sources[which];
    if (source == kBlockInput) return kInput;
    if (!layers_[i].reads_gathered_input) return {source, Made::kOutput};
    return Gathers(source) ? Value{source, Made::kGathered} : Read(source, 0);
  }

  std::vector<Value> ReadToRun(int i) const {
    if (Gathers(i)) return {{i, Made::kGathered}};
    std::vector<Value> values = {Read(i, 0)};
    if (layers_[i].sources[1] != kNoLayer) values.push_back(Read(i, 1));
    return values;
  }

  std::vector<Reading> ReadToGoBack(int i) const {
    const Layer& layer = layers_[i];
    const double bytes = layer.activation_bytes;
    if (layer.reuses_activation || !layer.stores_activation) return {};
    if (Gathers(i)) {
      return {{{i, Made::kGathered}, bytes, true},
              {Read(i, 0), bytes / hardware_.peers, false}};
    }
    if (layer.makes_activation) return {{{i, Made::kMask}, bytes, true}};
    if (layer.first_input_bytes > 0) {
      return {{Read(i, 0), layer.first_input_bytes, true},
              {Read(i, 1), bytes - layer.first_input_bytes, true}};
    }
    return {{Read(i, 0), bytes, layer.comm.kind != LayerComm::Kind::kSeparate}};
  }

 private:
  std::span<const Layer> layers_;
  const LayerHardware& hardware_;
};

// A block that keeps some values: what they take, and what runs again.
class KeepingBlock {
 public:
  KeepingBlock(const Reader& reader, std::set<Value> kept)
      : reader_(reader),
        kept_(std::move(kept)),
        computes_(reader.size(), false),
        gathers_(reader.size(), false) {
    for (int i = 0; i < reader_.size(); ++i) {
      for (const Reading& reading : reader_.ReadToGoBack(i)) {
        if (Has(reading.value)) {
          bytes_ += reading.bytes;
        } else if (reading.is_for_backward && reading.bytes > 0) {
          Make(reading.value);
        }
      }
    }
  }

  double bytes() const { return bytes_; }

  // As the layers of an execution that recomputes them.
  Block Recomputed(Block block) const {
    for (int i = 0; i < reader_.size(); ++i) {
      Layer& layer = block.layers()[i];
      const bool is_separate = layer.comm.kind == LayerComm::Kind::kSeparate;
      const bool sends = layer.comm.kind != LayerComm::Kind::kNone;
      layer.is_recomputed = computes_[i] && !is_separate;
      layer.comm.is_repeated =
          reader_.Gathers(i) ? gathers_[i] : computes_[i] && sends;
    }
    return block;
  }

 private:
  bool Has(const Value& value) const {
    return value == kInput || kept_.contains(value);
  }

  void Make(const Value& value) {
    const auto [layer, made] = value;
    if (made == Made::kGathered) {
      if (gathers_[layer]) return;
      gathers_[layer] = true;
      MakeUnlessKept(reader_.Read(layer, 0));
      return;
    }
    if (computes_[layer]) return;
    computes_[layer] = true;
    for (const Value& read : reader_.ReadToRun(layer)) MakeUnlessKept(read);
  }

  void MakeUnlessKept(const Value& value) {
    if (!Has(value)) Make(value);
  }

  const Reader& reader_;
  std::set<Value> kept_;
  std::vector<bool> computes_;
  std::vector<bool> gathers_;
  double bytes_ = 0;
};

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

// What the layers of a block hold, whatever it keeps.
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

class Checker {
 public:
  Checker(const Model& model, const System& system, const Execution& execution)
      : model_(model),
        system_(system),
        execution_(KeepingAll(execution)),
        corrections_(AllCorrections()),
        schedule_(ScheduleOf(model, execution_)),
        hardware_(HardwareOf(system, execution_, corrections_)),
        block_(BuildBlock(model, execution_, corrections_)),
        reader_(block_.layers(), hardware_),
        states_(StatesOf(block_.layers())),
        all_kept_(ComputeBlockCosts(model, system, execution_, corrections_)) {
    const BlockOperators listed = ListOperators(model, system, execution_);
    for (const KeepableTensor& tensor : listed.tensors) {
      const Operator& maker = listed.operators[tensor.maker];
      const Made made = tensor.is_mask ? Made::kMask
                        : maker.kind == Operator::Kind::kGather
                            ? Made::kGathered
                            : Made::kOutput;
      values_.push_back({maker.layer, made});
    }
  }

  Error Check(const StrategyPlan& plan) const {
    int64_t blocks = 0;
    std::vector<std::vector<Part>> parts;
    bool is_too_large = false;
    for (size_t i = 0; i < plan.stages.size(); ++i) {
      const StagePlan& stage = plan.stages[i];
      blocks += stage.blocks;
      if (Error error = CheckCounts(stage, static_cast<int64_t>(i))) {
        return At(i, *error);
      }
      parts.push_back(PartsOf(stage));
      if (Error error = CheckMemory(stage, parts.back())) return At(i, *error);
      if (Error error = CheckSeconds(stage, parts.back())) return At(i, *error);
      is_too_large |= Exceeds(stage.memory, 1 - 1e-9);
      if (plan.verdict.Fits() && Exceeds(stage.memory, 1 + 1e-9)) {
        return At(i, "takes more memory than there is");
      }
      if (!plan.verdict.Fits() && CouldKeepLess(stage, parts.back())) {
        return At(i, "could keep less, so that the plan may fit");
      }
    }
    if (blocks != model_.num_blocks) {
      return fmt::format("stages have {} blocks, the model has {}", blocks,
                         model_.num_blocks);
    }
    if (!plan.verdict.Fits() && !is_too_large) {
      return "the plan is said not to fit, but does";
    }
    if (Error error =
            Compare("seconds of a batch", plan.times.total, Total(parts))) {
      return error;
    }
    if (plan.bound > plan.times.total * (1 + 1e-9)) {
      return fmt::format("the bound {:.12g} is above the plan's {:.12g} s",
                         plan.bound, plan.times.total);
    }
    return std::nullopt;
  }

 private:
  static Execution KeepingAll(Execution execution) {
    execution.activation_recompute = Recompute::kNone;
    execution.seq_par_ag_redo = false;
    return execution;
  }

  static std::string At(size_t stage, std::string_view error) {
    return fmt::format("stage {}: {}", stage, error);
  }

  bool Exceeds(const MemoryNeeds& memory, double tolerance) const {
    return memory.tier1 > system_.mem1.capacity * tolerance ||
           memory.tier2 > system_.mem2.capacity * tolerance;
  }

  bool CouldKeepLess(const StagePlan& stage,
                     const std::vector<Part>& parts) const {
    const double least = KeepingBlock(reader_, {}).bytes();
    return Sum(parts, &Part::bytes) >
           static_cast<double>(stage.blocks) * least * (1 + 1e-9);
  }

  // Blocks are dealt out to the stages one by one.
  Error CheckCounts(const StagePlan& stage, int64_t index) const {
    const int64_t stages = execution_.pipeline_par;
    const int64_t blocks = model_.num_blocks / stages +
                           (index < model_.num_blocks % stages ? 1 : 0);
    int64_t planned = 0;
    for (const PolicyShare& policy : stage.policies) {
      if (policy.blocks <= 0) {
        return fmt::format("{} blocks have a policy", policy.blocks);
      }
      if (uint64_t{policy.kept} >> values_.size() != 0) {
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
                   static_cast<double>(MostLiveChunks(execution_, index)) /
                       schedule_.chunks);
  }

  Part PartOf(const PolicyShare& policy) const {
    std::set<Value> kept;
    for (size_t i = 0; i < values_.size(); ++i) {
      if ((policy.kept >> i & 1) != 0) kept.insert(values_[i]);
    }
    const KeepingBlock keeping(reader_, std::move(kept));
    const Block again = keeping.Recomputed(block_);
    BlockCosts costs = SumLayers(again.layers(), hardware_, true);
    costs.forward_send_size = all_kept_.forward_send_size;
    costs.act_storage_space = keeping.bytes();
    Part part{.blocks = static_cast<double>(policy.blocks),
              .bytes = keeping.bytes(),
              .times = TimesOf(costs)};
    part.seconds = SecondsOf(part.times);
    return part;
  }

  std::vector<Part> PartsOf(const StagePlan& stage) const {
    std::vector<Part> parts;
    for (const PolicyShare& policy : stage.policies) {
      parts.push_back(PartOf(policy));
    }
    return parts;
  }

  BatchTimes TimesOf(const BlockCosts& costs) const {
    return ComputeBatchTimes(system_, execution_, schedule_, costs,
                             corrections_);
  }

  // Of a block, forward and backward.
  double SecondsOf(const BatchTimes& times) const {
    double seconds = 0;
    for (const PassTimes& pass : {times.forward_pass, times.backward_pass}) {
      seconds += schedule_.base_blocks *
                     (pass.base.without_offload + pass.base.offload_overhead) +
                 (pass.edge.without_offload + pass.edge.offload_overhead);
    }
    return seconds / schedule_.blocks_per_chunk;
  }

  Error CheckMemory(const StagePlan& stage,
                    const std::vector<Part>& parts) const {
    const double blocks = static_cast<double>(stage.blocks);
    double most = 0;
    for (const Part& part : parts) most = std::max(most, part.bytes);
    const double live =
        static_cast<double>(MostLiveChunks(execution_, stage.stage)) /
        schedule_.chunks;
    const double kept = live * Sum(parts, &Part::bytes) - most;
    double tier1 = states_.working + states_.activation_gradients;
    double tier2 = 0;
    if (execution_.weight_offload) {
      tier1 += 2 * states_.weights;
      tier2 += blocks * states_.weights;
    } else {
      tier1 += blocks * states_.weights;
    }
    if (execution_.activations_offload) {
      tier1 += most;
      tier2 += kept;
    } else {
      tier1 += kept;
    }
    if (execution_.optimizer_offload) {
      tier1 += 2 * (states_.gradients + states_.optimizer);
      tier2 += blocks * (states_.gradients + states_.optimizer);
    } else {
      tier1 += blocks * (states_.gradients + states_.optimizer);
    }
    if (Error error = Compare("bytes of memory", stage.memory.tier1, tier1)) {
      return error;
    }
    return Compare("bytes of the second tier of memory", stage.memory.tier2,
                   tier2);
  }

  Error CheckSeconds(const StagePlan& stage,
                     const std::vector<Part>& parts) const {
    const double seconds = Sum(parts, &Part::seconds);
    if (Error error =
            Compare("seconds of a microbatch", stage.seconds, seconds)) {
      return error;
    }
    const double recompute = seconds - static_cast<double>(stage.blocks) *
                                           SecondsOf(TimesOf(all_kept_));
    // A difference is as exact as what it is of.
    if (std::abs(stage.recompute_seconds - recompute) > 1e-9 * seconds) {
      return Compare("seconds of recomputation", stage.recompute_seconds,
                     recompute);
    }
    return std::nullopt;
  }

  double Total(const std::vector<std::vector<Part>>& stages) const {
    const std::vector<Part>& first = stages.front();
    double total = 0;
    for (const Part& part : first) {
      total +=
          part.blocks * (part.times.total - part.times.data_parallel.exposed);
    }
    total = total / schedule_.blocks + Exposed(first);
    for (size_t i = 1; i < stages.size(); ++i) {
      total += ThroughStage(i, stages[i]) - ThroughStage(i, first);
    }
    return total;
  }

  // What a microbatch takes through a chunk of a stage, were its blocks like
  // these in the mean. Of a block that a stage lacks it is not known whether it
  // is the one that sends; a half of it is.
  double ThroughStage(size_t stage, const std::vector<Part>& parts) const {
    const auto fewer =
        static_cast<size_t>(model_.num_blocks % execution_.pipeline_par);
    const double missing = fewer > 0 && stage >= fewer ? 1 : 0;
    const double sending =
        schedule_.blocks_per_chunk > 1 ? 1 - missing / 2 : 1 - missing;
    const double others = schedule_.blocks_per_chunk > 1
                              ? schedule_.blocks_per_chunk - 1 - missing / 2
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
  double Exposed(const std::vector<Part>& parts) const {
    const DataParallelTimes& any = parts.front().times.data_parallel;
    if (execution_.data_par == 1 || !execution_.data_par_overlap) {
      return any.exposed;
    }
    double chunks_balance = 0;
    double tail_balance = 0;
    double chunk_backward = 0;
    for (const Part& part : parts) {
      const double share = part.blocks / schedule_.blocks;
      const PassTimes& pass = part.times.backward_pass;
      chunks_balance += share * part.times.data_parallel.chunk_balance;
      tail_balance += share * part.times.data_parallel.tail_balance;
      chunk_backward += share * (schedule_.base_blocks * pass.base.Total() +
                                 pass.edge.Total());
    }
    const double usage =
        system_.networks[execution_.data_par_net].processor_usage;
    const double chunk = schedule_.blocks_per_chunk * any.block_time;
    const auto left = [&](double balance, double communication) {
      return balance > 0 ? balance : communication * usage;
    };
    double exposed =
        any.block_time + left(tail_balance, chunk - any.block_time);
    if (schedule_.chunks == 1) return exposed;
    const double others = schedule_.chunks - 1;
    if (execution_.data_par_net == execution_.pipeline_par_net) {
      const double round = schedule_.last_round != 0 ? schedule_.last_round
                                                     : schedule_.pipeline_par;
      const double met = std::round((chunk - std::fmod(chunk, chunk_backward)) /
                                    chunk_backward);
      chunks_balance += others * std::min(met, round) *
                        parts.front().times.backward_pass.send;
    }
    return exposed + left(chunks_balance, others * chunk);
  }

  const Model& model_;
  const System& system_;
  Execution execution_;
  Corrections corrections_;
  Schedule schedule_;
  LayerHardware hardware_;
  Block block_;
  Reader reader_;
  BlockStates states_;
  BlockCosts all_kept_;
  std::vector<Value> values_;  // that the bits of a policy stand for
};

}  // namespace

Error FindPlanError(const Model& model, const System& system,
                    const Execution& execution, const StrategyPlan& plan) {
  const Verdict fit = CheckFit(model, system, execution);
  if (!fit.Fits()) {
    if (plan.verdict.rule == fit.rule && plan.stages.empty()) return {};
    return "a plan of a strategy that is none";
  }
  if (plan.stages.empty()) return "there are no stages";
  return Checker(model, system, execution).Check(plan);
}

}  // namespace acplan::costmodel
