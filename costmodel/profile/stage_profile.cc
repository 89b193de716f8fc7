// A layer's operations (layer_graph.h) become operators each of which is saved or
// recomputed on its own, as in PyTorch's selective checkpointing. In the graph an operation
// runs again if a tensor that it makes is not kept, or if its output is not kept and is
// read by an operation that runs again. An operation whose output is a tensor therefore
// runs again if and only if that tensor is dropped; an operation that makes no tensor if
// and only if one of its readers runs again. With the time of the latter added to its
// reader, the recomputation is the same sum over dropped operators. (If several operations
// read it, as in latent attention, the first one has its time.)
#include "costmodel/profile/stage_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/training/layer/layer_graph.h"
#include "costmodel/training/layer/tower_operations.h"
#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/settings/setting_names.h"
#include "costmodel/training/strategy/pipeline_schedule.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/step_time.h"
#include "costmodel/training/time/unit_times.h"
#include "graph/base/input_error.h"
#include "graph/base/number_limits.h"

namespace acplan::costmodel {
namespace {

constexpr int64_t kMostLayers = 4096;

int64_t ProfileBytes(double bytes) {
  if (!(bytes <= static_cast<double>(graph::kMostExactInteger))) {
    throw InputError(fmt::format(
        "a profile holds at most 2^53 bytes, the stage has {:.4g}", bytes));
  }
  return std::llround(bytes);
}

double Milliseconds(const PassTime& time) {
  return 1e3 * (time.compute + time.communication.Total());
}

// An operator of a layer, for one microbatch.
struct LayerOperator {
  std::string name = {};
  double bytes = 0;
  double ms = 0;
};

std::string ModuleName(std::string name) {
  std::ranges::replace(name, '.', '_');
  std::ranges::replace(name, ' ', '_');
  return name;
}

// Returns the first operation that reads this one's output.
std::optional<size_t> ReaderOf(const LayerGraph& graph, size_t operation) {
  for (size_t i = operation + 1; i < graph.operations.size(); ++i) {
    if ((graph.operations[i].inputs >> operation & 1) != 0) return i;
  }
  return std::nullopt;
}

std::vector<LayerOperator> OperatorsOf(const LayerGraph& graph) {
  std::vector<LayerOperator> all;
  for (const GraphOperation& operation : graph.operations) {
    all.push_back({operation.name, 0, Milliseconds(operation.forward)});
  }
  for (const GraphTensor& tensor : graph.tensors) {
    const double share = tensor.bytes / std::popcount(tensor.makers);
    for (size_t i = 0; i < all.size(); ++i) {
      if ((tensor.makers >> i & 1) != 0) all[i].bytes += share;
    }
  }
  LayerOperator rest{"rest", 0, 0};
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].bytes > 0) continue;
    const std::optional<size_t> reader = ReaderOf(graph, i);
    (reader ? all[*reader].ms : rest.ms) += std::exchange(all[i].ms, 0);
  }
  std::erase_if(all, [](const LayerOperator& one) { return one.bytes == 0; });
  all.push_back(std::move(rest));
  return all;
}

// A kind of layer.
struct LayerKind {
  LayerGraph graph = {};
  std::vector<LayerOperator> operators = {};
  UnitTime time = {};
  RankMemory states = {};  // those of one layer
};

// Bytes in use when a backward pass reaches a module.
struct Use {
  double activations = 0;
  double temporaries = 0;
};

// Sums over operators of a part of the stage.
struct ModuleSum {
  double bytes = 0;
  double forward_ms = 0;
  double backward_ms = 0;
  RankMemory states = {};
};

class ProfileWriter {
 public:
  ProfileWriter(const TrainingJob& job, size_t stage);
  graph::Profile Write();

 private:
  size_t Begin(const std::string& fqn);
  graph::Module& End(size_t index, const ModuleSum& sum, const Use& use);
  // Returns the layer's part of the stage's sums.
  ModuleSum AddLayer(int64_t index, const LayerKind& kind, double in_flight);
  void AddLeaves(const std::string& fqn, const LayerKind& kind, const Use& use);
  graph::SacStatistics Statistics(const LayerKind& kind, double in_flight);
  graph::MemorySnapshot Snapshot(const Use& use) const;
  void AddMeasured();

  StageContent content_;
  std::array<LayerKind, 2> kinds_ = {};
  RankMemory memory_ = {};
  double in_flight_ = 1;
  double passes_ = 1;
  double held_bytes_ = 0;            // the activations of the layers so far
  graph::SacStatistics whole_ = {};  // those of the whole stage
  graph::Profile profile_ = {};
};

ProfileWriter::ProfileWriter(const TrainingJob& job, size_t stage)
    : content_(DivideLayers(job).at(stage)),
      in_flight_(MicrobatchesInFlight(job.strategy, stage)),
      passes_(PassesOfStage(job.strategy)) {
  if (content_.has_embedding && RunsTowers(job)) {
    throw InputError(
        "images: expected 0, and no encoder, for the profile of the stage with "
        "the tower, which has no modules there");
  }
  const UnitTimes units = TimesOfUnits(job);
  StageKeeping keeping;
  for (const bool is_moe : {false, true}) {
    const int64_t layers = is_moe ? content_.moe_layers : content_.dense_layers;
    if (layers == 0) continue;
    LayerKind& kind = kinds_[is_moe ? 1 : 0];
    kind.graph = GraphOfLayer(job, is_moe);
    kind.operators = OperatorsOf(kind.graph);
    kind.time = is_moe ? units.moe : units.dense;
    StageContent one;
    (is_moe ? one.moe_layers : one.dense_layers) = 1;
    kind.states = MemoryOfKeeping(job, one, stage, {});
    keeping.kept_bytes += static_cast<double>(layers) * kind.graph.WholeBytes();
  }
  memory_ = MemoryOfKeeping(job, content_, stage, keeping);
}

size_t ProfileWriter::Begin(const std::string& fqn) {
  profile_.modules.emplace_back().fqn = fqn;
  profile_.order.fw_pre.push_back(fqn);
  return profile_.modules.size() - 1;
}

graph::MemorySnapshot ProfileWriter::Snapshot(const Use& use) const {
  graph::MemorySnapshot snapshot = {};
  snapshot[graph::kParam] = ProfileBytes(memory_.parameters);
  snapshot[graph::kGrad] = ProfileBytes(memory_.gradients);
  snapshot[graph::kAct] = ProfileBytes(use.activations);
  snapshot[graph::kTemp] = ProfileBytes(use.temporaries);
  snapshot[graph::kOpt] = ProfileBytes(memory_.optimizer);
  snapshot[graph::kTotal] =
      std::accumulate(snapshot.begin(), snapshot.end(), int64_t{0});
  return snapshot;
}

graph::Module& ProfileWriter::End(size_t index, const ModuleSum& sum,
                                  const Use& use) {
  graph::Module& module = profile_.modules[index];
  profile_.order.fw_post.push_back(module.fqn);
  if (sum.forward_ms + sum.backward_ms > graph::kMostNumber) {
    throw InputError(
        fmt::format("a profile holds at most 1e18 ms, the stage has {:.4g}",
                    sum.forward_ms + sum.backward_ms));
  }
  module.act_fw_per_module = ProfileBytes(sum.bytes);
  module.fw_runtime_per_module = sum.forward_ms;
  module.bw_runtime_per_module = sum.backward_ms;
  module.param_per_module = ProfileBytes(sum.states.parameters);
  module.grad_per_module = ProfileBytes(sum.states.gradients);
  module.grad_total = ProfileBytes(memory_.gradients);
  module.act_total = module.act_bw_per_module = ProfileBytes(use.activations);
  module.act_grad_per_module = ProfileBytes(use.temporaries);
  graph::ModuleSnapshots& snap = module.snap.emplace();
  snap.peak_fw = Snapshot({use.activations, 0});
  snap.peak_bw = Snapshot(use);
  return module;
}

graph::SacStatistics ProfileWriter::Statistics(const LayerKind& kind,
                                               double in_flight) {
  graph::SacStatistics sac;
  const auto add = [&](graph::SacStatistics& to, const LayerOperator& one) {
    const int index = static_cast<int>(to.func_names.size());
    to.func_names.push_back(one.name);
    to.runtimes.push_back(passes_ * one.ms);
    to.memory.push_back(ProfileBytes(in_flight * one.bytes));
    if (one.bytes > 0) to.saved_autograd_ops.push_back(index);
  };
  for (const LayerOperator& one : kind.operators) {
    add(sac, one);
    add(whole_, one);
  }
  return sac;
}

void ProfileWriter::AddLeaves(const std::string& fqn, const LayerKind& kind,
                              const Use& use) {
  for (const GraphOperation& operation : kind.graph.operations) {
    const size_t leaf =
        Begin(fmt::format("{}.{}", fqn, ModuleName(operation.name)));
    ModuleSum sum;
    sum.forward_ms = passes_ * Milliseconds(operation.forward);
    End(leaf, sum, use).is_leaf = true;
  }
}

ModuleSum ProfileWriter::AddLayer(int64_t index, const LayerKind& kind,
                                  double in_flight) {
  const std::string fqn = fmt::format("Transformer.layers.{}", index);
  const size_t layer = Begin(fqn);
  const double input = kind.graph.input_bytes;
  const double whole = kind.graph.WholeBytes();
  // The bytes that every plan keeps of the other microbatches, and one whole microbatch.
  const Use use{held_bytes_ + (in_flight_ - 1) * input + whole,
                memory_.working + memory_.libraries};
  AddLeaves(fqn, kind, use);
  ModuleSum sum{.bytes = 0,
                .forward_ms = passes_ * Milliseconds(kind.time.forward),
                .backward_ms = passes_ * Milliseconds(kind.time.backward),
                .states = kind.states};
  graph::SacStatistics sac = Statistics(kind, in_flight);
  for (const int64_t bytes : sac.memory)
    sum.bytes += static_cast<double>(bytes);
  End(layer, sum, use).sac = std::move(sac);
  held_bytes_ += in_flight_ * whole;
  // A layer's result is the input of the next layer, which keeps it.
  if (index > 0) sum.bytes += in_flight * input;
  return sum;
}

void ProfileWriter::AddMeasured() {
  const graph::MemorySnapshot step = Snapshot({});
  profile_.measured = {.peak_bytes = ProfileBytes(memory_.Total()),
                       .opt_step_peak_bytes = step[graph::kTotal],
                       .opt_step_peak_categories = step,
                       .param_bytes = step[graph::kParam],
                       .grad_bytes = step[graph::kGrad],
                       .optimizer_bytes = step[graph::kOpt],
                       .buffer_bytes = 0,
                       .input_bytes = 0};
}

graph::Profile ProfileWriter::Write() {
  const size_t root = Begin("Transformer");
  ModuleSum stage{.states = memory_};
  const int64_t layers = content_.Layers();
  for (int64_t i = 0; i < layers; ++i) {
    const LayerKind& kind = kinds_[i < content_.dense_layers ? 0 : 1];
    const double recomputed_bytes =
        kind.graph.WholeBytes() - kind.graph.input_bytes;
    const bool is_whole_once =
        i + 1 == layers && memory_.logits < recomputed_bytes;
    const ModuleSum layer =
        AddLayer(i, kind, in_flight_ - (is_whole_once ? 1 : 0));
    stage.bytes += layer.bytes;
    stage.forward_ms += layer.forward_ms;
    stage.backward_ms += layer.backward_ms;
  }
  End(root, stage,
      {memory_.activations,
       memory_.logits + memory_.working + memory_.libraries})
      .sac = std::move(whole_);
  profile_.order.bw_pre.assign(profile_.order.fw_post.rbegin(),
                               profile_.order.fw_post.rend());
  profile_.order.bw_post.assign(profile_.order.fw_pre.rbegin(),
                                profile_.order.fw_pre.rend());
  AddMeasured();
  return std::move(profile_);
}

void RequireProfile(const TrainingJob& job, const StageContent& content) {
  if (job.strategy.implementation != Implementation::kFused) {
    throw InputError(
        "implementation: expected fused, as acplan has no list of operations "
        "of eager modules; found eager");
  }
  if (job.strategy.offloaded_layers > 0) {
    throw InputError(fmt::format(
        "offload_layers: expected 0, as a profile has no host; found {}",
        job.strategy.offloaded_layers));
  }
  if (job.strategy.offloads_states) {
    throw InputError(
        "offload_states: expected false, as a profile has no host; found true");
  }
  if (job.strategy.lora_rank > 0) {
    throw InputError(
        fmt::format("lora_rank: expected 0, as a profile has no adapters; "
                    "found {}",
                    job.strategy.lora_rank));
  }
  if (content.Layers() == 0 || content.Layers() > kMostLayers) {
    throw InputError(
        fmt::format("layers: expected 1 to {} in the stage, found {}",
                    kMostLayers, content.Layers()));
  }
}

}  // namespace

graph::Profile StageProfile(const TrainingJob& job, size_t stage) {
  RequirePrecision(job);
  TrainingJob whole = job;
  whole.strategy.recomputation = Recomputation::kNone;
  whole.strategy.parts.clear();
  whole.strategy.full_layers = whole.strategy.every_layers = 0;
  RequireProfile(whole, DivideLayers(whole).at(stage));
  graph::Profile profile = ProfileWriter(whole, stage).Write();
  profile.model.root_class = "Transformer";
  profile.model.batch = job.strategy.global_batch / job.strategy.Data();
  profile.model.seq = job.strategy.sequence;
  profile.model.dtype = NameOf(job.strategy.precision);
  profile.model.optimizer = "Adam";
  profile.device.peak_flops = job.cluster.gpu.Rate(job.strategy.precision);
  profile.device.bandwidth = job.cluster.gpu.memory_rate;
  return profile;
}

}  // namespace acplan::costmodel
