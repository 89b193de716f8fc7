#include "costmodel/profile/stage_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "costmodel/llm/schedule.h"
#include "costmodel/profile/stage_operators.h"
#include "graph/base/input_error.h"
#include "graph/base/number_limits.h"

namespace acplan::costmodel {
namespace {

constexpr int64_t kMostBlocks = 4096;
constexpr double kMostMs = graph::kMostNumber;

// All but the memory of the last one, whose result is the module's.
graph::SacStatistics StatisticsOf(std::span<const LayerCosts> layers,
                                  std::span<const StageOperator> operators) {
  graph::SacStatistics sac;
  for (size_t k = 0; k < operators.size(); ++k) {
    const LayerCosts& costs = layers[operators[k].layer];
    const int index = static_cast<int>(k);
    const bool is_result = k + 1 == operators.size();
    sac.func_names.emplace_back(costs.layer.name);
    sac.runtimes.push_back(operators[k].ms.forward);
    sac.memory.push_back(is_result ? operators[k].kept_inside
                                   : operators[k].made);
    if (costs.is_view_like) sac.view_like_ops.push_back(index);
    if (costs.is_random) sac.rand_ops.push_back(index);
    if (costs.is_in_place) sac.inplace_ops.emplace_back(index, index - 1);
    if (costs.kept_inside + costs.kept_result > 0) {
      sac.saved_autograd_ops.push_back(index);
    }
  }
  return sac;
}

// Bytes in use when backward reaches a module, for a microbatch or for all that
// are in flight.
struct Use {
  double activations = 0;
  double temporaries = 0;  // gradients of activations among them
};

// Writes the modules of a stage, in the order of the forward pass.
class ModuleWriter {
 public:
  explicit ModuleWriter(const StageOperators& stage) : stage_(stage) {}

  graph::Profile Build() {
    const size_t root = Begin("Transformer");
    const size_t stage = Begin("Transformer.stage");
    for (size_t i = 0; i < stage_.blocks.size(); ++i) AddBlock(i);
    const Use peak{held_, Working()};
    End(stage, {0, stage_.operators.size()}, peak);
    End(root, {0, stage_.operators.size()}, peak);
    graph::ModuleOrders& order = profile_.order;
    order.bw_pre.assign(order.fw_post.rbegin(), order.fw_post.rend());
    order.bw_post.assign(order.fw_pre.rbegin(), order.fw_pre.rend());
    AddMeasured(peak);
    return std::move(profile_);
  }

 private:
  double Working() const {
    return stage_.costs.act_working_space - stage_.costs.act_storage_space +
           stage_.costs.act_grad_space;
  }

  // Returns the bytes of a block with the activations of a microbatch up to
  // layer `end`, and what every plan keeps of the other microbatches.
  double ActivationsUpTo(const StageBlock& share, size_t end) const {
    double bytes =
        held_ + std::max(1.0, share.microbatches) * stage_.input_bytes;
    for (size_t k = 0; k < end; ++k) {
      bytes += stage_.layers[k].kept_inside + stage_.layers[k].kept_result;
    }
    return bytes;
  }

  void AddBlock(size_t index) {
    const StageBlock& share = stage_.blocks[index];
    const std::string fqn = fmt::format("Transformer.stage.blocks.{}", index);
    const size_t first = index * stage_.layers.size();
    const size_t block = Begin(fqn);
    const auto end = [&](size_t module, LayerRange range, double temporaries) {
      End(module, {first + range.begin, first + range.end},
          {ActivationsUpTo(share, range.end), temporaries});
    };
    const auto add_leaves = [&](const std::string& parent, LayerRange range) {
      for (size_t k = range.begin; k < range.end; ++k) {
        const Layer& layer = stage_.layers[k].layer;
        const size_t leaf = Begin(fmt::format("{}.{}", parent, layer.name));
        profile_.modules[leaf].is_leaf = true;
        end(leaf, {k, k + 1}, layer.activation_grad_bytes);
      }
    };
    const std::string attention_fqn = fqn + ".attention";
    const size_t attention = Begin(attention_fqn);
    add_leaves(attention_fqn,
               {stage_.layout.attention.begin, stage_.layout.core.begin});
    const size_t core = Begin(attention_fqn + ".core");
    add_leaves(attention_fqn + ".core", stage_.layout.core);
    end(core, stage_.layout.core, stage_.costs.act_grad_space);
    add_leaves(attention_fqn,
               {stage_.layout.core.end, stage_.layout.attention.end});
    end(attention, stage_.layout.attention, stage_.costs.act_grad_space);
    const size_t mlp = Begin(fqn + ".mlp");
    add_leaves(fqn + ".mlp", stage_.layout.mlp);
    end(mlp, stage_.layout.mlp, stage_.costs.act_grad_space);
    end(block, {0, stage_.layers.size()}, Working());
    held_ += share.microbatches * stage_.costs.act_storage_space;
  }

  size_t Begin(const std::string& fqn) {
    profile_.modules.emplace_back().fqn = fqn;
    profile_.order.fw_pre.push_back(fqn);
    return profile_.modules.size() - 1;
  }

  void End(size_t index, LayerRange range, const Use& use) {
    graph::Module& module = profile_.modules[index];
    profile_.order.fw_post.push_back(module.fqn);
    const std::span<const StageOperator> operators =
        std::span(stage_.operators)
            .subspan(range.begin, range.end - range.begin);
    double weights = 0;
    double gradients = 0;
    for (const StageOperator& one : operators) {
      weights += one.weights;
      gradients += one.gradients;
      module.act_fw_per_module += one.kept_inside + one.kept_result;
      module.fw_runtime_per_module += one.ms.forward;
      module.bw_runtime_per_module += one.ms.backward;
    }
    module.act_fw_per_module -= operators.back().kept_result;
    if (module.fw_runtime_per_module + module.bw_runtime_per_module > kMostMs) {
      throw InputError(fmt::format(
          "a profile holds at most 1e18 ms, the stage has {:.4g}",
          module.fw_runtime_per_module + module.bw_runtime_per_module));
    }
    const StageOperator& front = operators.front();
    const StageOperator& back = operators.back();
    module.param_per_module = ProfileBytes(weights);
    module.grad_per_module = ProfileBytes(gradients);
    module.grad_total = ProfileBytes(stage_.gradients);
    module.act_total = module.act_bw_per_module = ProfileBytes(use.activations);
    module.act_grad_per_module = ProfileBytes(use.temporaries);
    module.input_per_module = ProfileBytes(
        front.microbatches * stage_.layers[front.layer].layer.inputs *
        stage_.bytes_per_element);
    module.output_per_module = ProfileBytes(
        back.microbatches * stage_.layers[back.layer].layer.output_bytes);
    graph::ModuleSnapshots& snap = module.snap.emplace();
    snap.peak_fw = Snapshot({use.activations, 0});
    snap.peak_bw = Snapshot(use);
    if (!module.is_leaf) module.sac = StatisticsOf(stage_.layers, operators);
  }

  graph::MemorySnapshot Snapshot(const Use& use) const {
    graph::MemorySnapshot snapshot = {};
    snapshot[graph::kParam] = ProfileBytes(stage_.weights);
    snapshot[graph::kGrad] = ProfileBytes(stage_.gradients);
    snapshot[graph::kAct] = ProfileBytes(use.activations);
    snapshot[graph::kTemp] = ProfileBytes(use.temporaries);
    snapshot[graph::kOpt] = ProfileBytes(stage_.optimizer);
    snapshot[graph::kTotal] =
        std::accumulate(snapshot.begin(), snapshot.end(), int64_t{0});
    return snapshot;
  }

  void AddMeasured(const Use& peak) {
    const graph::MemorySnapshot step = Snapshot({});
    profile_.measured = {.peak_bytes = Snapshot(peak)[graph::kTotal],
                         .opt_step_peak_bytes = step[graph::kTotal],
                         .opt_step_peak_categories = step,
                         .param_bytes = step[graph::kParam],
                         .grad_bytes = step[graph::kGrad],
                         .optimizer_bytes = step[graph::kOpt],
                         .buffer_bytes = 0,
                         .input_bytes = 0};
  }

  const StageOperators& stage_;
  double held_ = 0;  // activations of the blocks so far
  graph::Profile profile_;
};

}  // namespace

graph::Profile StageProfile(const Model& model, const System& system,
                            const Execution& execution,
                            const Corrections& corrections, int64_t stage) {
  const double blocks = StageBlocks(ScheduleOf(model, execution), stage);
  if (blocks > kMostBlocks) {
    throw InputError(
        fmt::format("num_blocks: expected at most {} blocks a stage, found {}",
                    kMostBlocks, blocks));
  }
  Execution without = execution;
  without.activation_recompute = Recompute::kNone;
  without.seq_par_ag_redo = false;
  graph::Profile profile =
      ModuleWriter(
          ListStageOperators(model, system, without, corrections, stage))
          .Build();
  profile.model.root_class = "Transformer";
  profile.model.batch = execution.batch_size / execution.data_par;
  profile.model.seq = model.seq_size;
  profile.model.dtype = kDatatypeNames[static_cast<size_t>(execution.datatype)];
  profile.model.optimizer = "Adam";
  profile.device.peak_flops = system.matrix.Engine(execution.datatype).peak();
  profile.device.bandwidth = system.mem1.bandwidth.peak();
  return profile;
}

}  // namespace acplan::costmodel
