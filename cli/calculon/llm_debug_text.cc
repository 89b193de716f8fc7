#include "cli/calculon/llm_debug_text.h"

#include <fmt/format.h>

#include <string_view>

#include "cli/terminal/human_numbers.h"
#include "costmodel/calculon/layers/layer_times.h"
#include "costmodel/calculon/llm/block_costs.h"
#include "costmodel/calculon/llm/schedule.h"
#include "graph/base/number_text.h"

namespace acplan::cli {

namespace {

using costmodel::BlockPlace;
using costmodel::Layer;
using costmodel::LayerHardware;
using costmodel::Stage;
using costmodel::Statistic;
using costmodel::WorkTime;

// Lines of the form "label value".
class Lines {
 public:
  explicit Lines(std::string prefix = "") : prefix_(std::move(prefix)) {}

  void Add(std::string_view label, std::string_view value) {
    text_ += fmt::format("{}{} {}\n", prefix_, label, value);
  }
  void Flag(std::string_view label, bool value) {
    Add(label, value ? "True" : "False");
  }
  void Bytes(std::string_view label, double value) {
    Add(label, HumanNumber(value, HumanUnit::kBytes));
  }
  void Flops(std::string_view label, double value) {
    Add(label, HumanNumber(value, HumanUnit::kFlops));
  }
  void Count(std::string_view label, double value) {
    Add(label, HumanNumber(value, HumanUnit::kCount));
  }
  void Bandwidth(std::string_view label, double value) {
    Add(label, HumanNumber(value, HumanUnit::kBandwidth));
  }
  void Short(std::string_view label, double value) {
    Add(label, fmt::format("{:.3e}", value));
  }
  void Full(std::string_view label, double value) {
    Add(label, value == 0 ? "0" : graph::FloatText(value));
  }
  void Whole(std::string_view label, double value) {
    Add(label, fmt::format("{:.0f}", value));
  }

  std::string Take() { return std::move(text_); }

 private:
  std::string prefix_;
  std::string text_;
};

// Sums over the layers so far.
struct RunningSpace {
  double weights = 0;
  double working = 0;
  double storage = 0;
  double weight_grads = 0;
  double activation_grads = 0;
  double optimizer = 0;

  void Add(const Layer& layer, bool is_training) {
    weights += layer.weight_bytes;
    if (!layer.reuses_activation) working += layer.activation_bytes;
    storage += layer.activation_bytes;
    if (!is_training) return;
    if (!layer.stores_output) storage -= layer.output_bytes;
    if (!layer.stores_activation) storage -= layer.activation_bytes;
    weight_grads += layer.weight_grad_bytes;
    activation_grads += layer.activation_grad_bytes;
    optimizer += layer.optimizer_bytes;
  }
};

class LayerText {
 public:
  LayerText(const Layer& layer, const LayerHardware& hardware, bool is_training)
      : layer_(layer),
        hardware_(hardware),
        is_training_(is_training),
        lines_(std::string(layer.name) + " ") {}

  std::string Text(const RunningSpace& space) {
    AddFlags();
    AddForward();
    AddBackward();
    AddRepeated();
    AddOptimizer();
    AddSpace(space);
    return lines_.Take();
  }

 private:
  double Net(Stage stage) const {
    return NetTime(layer_, stage, BlockPlace::kBase,
                   TimeWork(layer_, stage, hardware_), hardware_);
  }
  costmodel::ProcessingTime Processing(Stage stage) const {
    return TimeProcessing(layer_, TimeWork(layer_, stage, hardware_),
                          Net(stage), hardware_);
  }
  // An overlapped layer exposes only the stage that was computed last.
  double Exposed(Stage stage, Stage last) const {
    const bool is_overlapped =
        layer_.comm.kind == costmodel::LayerComm::Kind::kOverlapped;
    return Processing(is_overlapped ? last : stage).exposed;
  }

  void AddComm(std::string_view pass, Stage stage) {
    using enum BlockPlace;
    const auto label = [&](std::string_view rest) {
      return fmt::format("{} {}", pass, rest);
    };
    lines_.Bytes(label("baseblock comm tile size:"),
                 CommTileBytes(layer_, stage, kBase, hardware_));
    lines_.Bytes(label("edgeblock comm tile size:"),
                 CommTileBytes(layer_, stage, kEdge, hardware_));
    lines_.Bytes(label("baseblock comm size:"),
                 CommBytes(layer_, stage, kBase, hardware_));
    lines_.Bytes(label("edgeblock comm size:"),
                 CommBytes(layer_, stage, kEdge, hardware_));
    lines_.Short(label("net link time:"), Net(stage));
  }

  void AddFlags() {
    lines_.Flag("Recompute flag:", layer_.is_recomputed);
    lines_.Flag("Recomm flag:", layer_.comm.is_repeated);
    lines_.Flag("Stores activation:", layer_.stores_activation);
    lines_.Flag("Reuses activation:", layer_.reuses_activation);
    lines_.Flag("Stores output:", layer_.stores_output);
  }

  void AddForward() {
    lines_.Flops("FW flops:", layer_.At(Stage::kForward).flops);
    lines_.Count("FW num inputs:", layer_.inputs);
    lines_.Count("FW num output:", layer_.outputs);
    lines_.Count("FW num weights:", layer_.weights);
    lines_.Bytes("FW mem:", layer_.At(Stage::kForward).mem_accessed);
    AddComm("FW", Stage::kForward);
    lines_.Short("FW net exposed time:",
                 Exposed(Stage::kForward, is_training_ ? Stage::kOptimizerStep
                                                       : Stage::kForward));
    lines_.Short("FW time:", Processing(Stage::kForward).run);
  }

  void AddBackward() {
    const costmodel::Work& activation = layer_.At(Stage::kActivationGradient);
    const costmodel::Work& weight = layer_.At(Stage::kWeightGradient);
    lines_.Flops("BW flops:", activation.flops + weight.flops);
    lines_.Count("BW num Wgrads:", layer_.weights);
    lines_.Count("BW num Agrads:", layer_.activation_grads);
    lines_.Count("BW num Igrads:", layer_.inputs);
    lines_.Bytes("BW mem:", activation.mem_accessed + weight.mem_accessed);
    AddComm("BW", Stage::kActivationGradient);
    lines_.Short("BW net exposed time:",
                 Exposed(Stage::kActivationGradient, Stage::kForward));
    lines_.Short("BW time:", Processing(Stage::kActivationGradient).run +
                                 Processing(Stage::kWeightGradient).run);
  }

  void AddRepeated() {
    AddComm("Recomm", Stage::kWeightGradient);
    lines_.Short("Recomm net exposed time:",
                 Exposed(Stage::kWeightGradient, Stage::kWeightGradient));
  }

  void AddOptimizer() {
    const costmodel::Work& work = layer_.At(Stage::kOptimizerStep);
    lines_.Flops("Optim flops:", work.flops);
    lines_.Bytes("BW Optimizer size:", layer_.optimizer_bytes);
    lines_.Bytes("Optim mem:", work.mem_accessed);
    lines_.Short("Optim time:", Processing(Stage::kOptimizerStep).run);
  }

  void AddSpace(const RunningSpace& space) {
    lines_.Short("Recompute:", layer_.is_recomputed ? 1 : 0);
    lines_.Bytes("Recompute mem saving:",
                 layer_.stores_output ? layer_.output_bytes : 0);
    lines_.Bytes("Weight:", layer_.weight_bytes);
    lines_.Bytes("Act:", layer_.activation_bytes);
    lines_.Bytes("Weight grad:", layer_.weight_grad_bytes);
    lines_.Bytes("Act grad:", layer_.activation_grad_bytes);
    lines_.Bytes("Optim:", layer_.optimizer_bytes);
    lines_.Bytes("Incremental Weight:", space.weights);
    lines_.Bytes("Incremental Act Working space:", space.working);
    lines_.Bytes("Incremental Act Storage space:", space.storage);
    lines_.Bytes("Incremental Weight grad:", space.weight_grads);
    lines_.Bytes("Incremental Act grad:", space.activation_grads);
    lines_.Bytes("Incremental Optim:", space.optimizer);
  }

  const Layer& layer_;
  const LayerHardware& hardware_;
  bool is_training_;
  Lines lines_;
};

std::string LayersText(const LlmResult& result) {
  const costmodel::Execution& execution = result.execution;
  const costmodel::Block block = BuildBlock(result.model, execution);
  const LayerHardware hardware = HardwareOf(result.system, execution);
  RunningSpace space;
  std::string text;
  for (const Layer& layer : block.layers()) {
    space.Add(layer, execution.training);
    text += LayerText(layer, hardware, execution.training).Text(space);
  }
  return text;
}

std::string BlockText(const costmodel::BlockCosts& block,
                      const costmodel::Statistics& statistics) {
  Lines lines;
  lines.Bytes("TP comm FW baseblock size:", block.forward_comm.base_size);
  lines.Bytes("TP comm FW edgeblock size:", block.forward_comm.edge_size);
  lines.Bytes("PP comm FW size:", Statistic(statistics, "block_fw_pp_size"));
  lines.Bytes("TP comm BW baseblock size:", block.backward_comm.base_size);
  lines.Bytes("TP comm BW edgeblock size:", block.backward_comm.edge_size);
  lines.Bytes("PP comm BW size:", Statistic(statistics, "block_bw_pp_size"));
  lines.Bytes("TP recomm baseblock size:", block.repeated_comm.base_size);
  lines.Bytes("TP recomm edgeblock size:", block.repeated_comm.edge_size);
  lines.Bandwidth("TP comm required bandwidth for tiled overlap:",
                  block.overlap_bandwidth_required);
  return lines.Take();
}

double OverBatch(const costmodel::Schedule& schedule, double base,
                 double edge) {
  return schedule.microbatches * schedule.chunks *
         (schedule.base_blocks * base + edge);
}

void AddTensorComm(std::string_view pass, const costmodel::StageComm& comm,
                   const costmodel::Schedule& schedule, Lines& lines) {
  const auto label = [&](std::string_view place, std::string_view rest) {
    return fmt::format("TP comm {}{} {}", place, pass, rest);
  };
  lines.Full(label("baseblock ", "time:"), comm.base_time);
  lines.Full(label("edgeblock ", "time:"), comm.edge_time);
  lines.Full(label("", "time:"),
             OverBatch(schedule, comm.base_time, comm.edge_time));
  lines.Full(label("baseblock ", "exposed time:"), comm.base_exposed);
  lines.Full(label("edgeblock ", "exposed time:"), comm.edge_exposed);
  lines.Full(label("", "exposed time:"),
             OverBatch(schedule, comm.base_exposed, comm.edge_exposed));
}

void AddBlockTimes(const costmodel::BlockCosts& block,
                   const costmodel::BatchTimes& times, Lines& lines) {
  const costmodel::PassTimes& forward = times.forward_pass;
  const costmodel::PassTimes& backward = times.backward_pass;
  lines.Full("Block FW time:", block.forward.time);
  lines.Full("Baseblock FW time:", forward.base.Total());
  lines.Full("With FW offload overhead time:", forward.base.offload_overhead);
  lines.Full("Edgeblock FW time:", forward.edge.Total());
  lines.Full("With FW offload overhead time:", forward.edge.offload_overhead);
  lines.Full("Baseblock REcomm exposed time:",
             block.repeated_comm.base_exposed);
  lines.Full("Edgeblock REcomm exposed time:",
             block.repeated_comm.edge_exposed);
  lines.Full("Block RE time:", block.recompute.time);
  lines.Full("Block BW Agrad time:", block.activation_grad.time);
  lines.Full("Block BW Wgrad time:", block.weight_grad.time);
  lines.Full("Block optim time:", block.optimizer.time);
  lines.Full("Baseblock BW time:", backward.base.Total());
  lines.Full("With BW offload overhead time:", backward.base.offload_overhead);
  lines.Full("Edgeblock BW time:", backward.edge.Total());
  lines.Full("With BW offload overhead time:", backward.edge.offload_overhead);
}

void AddDataParallel(const LlmResult& result,
                     const costmodel::Schedule& schedule,
                     const costmodel::Statistics& statistics, Lines& lines) {
  const costmodel::BatchTimes& times = result.evaluation.times;
  const costmodel::DataParallelTimes& data_parallel = times.data_parallel;
  lines.Bytes("DP block comm size:", data_parallel.block_size);
  lines.Short("DP block comm time (no overlap):", data_parallel.block_time);
  if (result.execution.data_par_overlap) {
    lines.Whole("Blocks per chunk:", schedule.blocks_per_chunk);
    lines.Whole("Num overlappable chunks:", schedule.chunks - 1);
    lines.Whole("Last chunk size:", schedule.blocks_per_chunk - 1);
    lines.Short("Chunk exposed time:", data_parallel.chunk_excess);
    lines.Short("Last chunk exposed time:", data_parallel.tail_exposed);
  }
  const auto chunk = [&](const costmodel::PassTimes& pass) {
    return schedule.base_blocks * pass.base.Total() + pass.edge.Total();
  };
  lines.Short("Chunk FW time:", chunk(times.forward_pass));
  lines.Short("Chunk BW time:", chunk(times.backward_pass));
  lines.Short("Chunk BW time for DP overlap:", data_parallel.chunk_overlap);
  lines.Short("DP comm time exposed:", data_parallel.exposed);
  lines.Short("DP comm time on the link:", data_parallel.link);
  lines.Bandwidth("DP comm required bandwidth for overlapped chunks:",
                  Statistic(statistics, "dp_bw_overlap_req_chunk"));
  lines.Bandwidth("DP comm required bandwidth for the last chunk:",
                  Statistic(statistics, "dp_bw_overlap_req_tail"));
}

std::string BatchText(const LlmResult& result,
                      const costmodel::Statistics& statistics) {
  const costmodel::BlockCosts& block = result.evaluation.block;
  const costmodel::BatchTimes& times = result.evaluation.times;
  const costmodel::Schedule schedule =
      ScheduleOf(result.model, result.execution);
  Lines lines;
  AddTensorComm("FW", block.forward_comm, schedule, lines);
  AddTensorComm("BW", block.backward_comm, schedule, lines);
  const double sends = result.execution.pipeline_par > 1
                           ? schedule.microbatches * schedule.chunks
                           : 0;
  lines.Full("PP comm chunk FW time:", times.forward_pass.send);
  lines.Full("PP comm chunk BW time:", times.backward_pass.send);
  lines.Add("PP comm FW time:",
            graph::FloatText(sends * times.forward_pass.send));
  lines.Add("PP comm BW time:",
            graph::FloatText(result.execution.training
                                 ? sends * times.backward_pass.send
                                 : 0));
  AddBlockTimes(block, times, lines);
  AddDataParallel(result, schedule, statistics, lines);
  return lines.Take();
}

}  // namespace

std::string DebugText(const LlmResult& result,
                      const costmodel::Statistics& statistics) {
  std::string text = LayersText(result) +
                     BlockText(result.evaluation.block, statistics) +
                     BatchText(result, statistics);
  text.pop_back();
  return text;
}

}  // namespace acplan::cli
