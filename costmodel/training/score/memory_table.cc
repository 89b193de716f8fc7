#include "costmodel/training/score/memory_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/strategy/layout_text.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

constexpr double kGiBytes = 1024.0 * 1024 * 1024;
// The number of GPT-2's tokens, which Megatron-Core's tests use.
constexpr int64_t kTokens = 50257;

bool Says(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// The arguments of a reading, as Megatron-LM names them.
class Arguments {
 public:
  Arguments(const graph::CsvRow& row, const JsonField& root)
      : row_(&row), root_(root) {}

  bool Has(std::string_view key) const { return root_.Has(key); }
  int64_t Whole(std::string_view key, int64_t fallback) const {
    return Has(key) ? root_.Get(key).Int(0, INT32_MAX) : fallback;
  }
  double Number(std::string_view key, double fallback) const {
    return Has(key) ? root_.Get(key).Number() : fallback;
  }
  std::string Text(std::string_view key) const {
    return Has(key) ? root_.Get(key).String() : std::string();
  }
  const graph::CsvRow& row() const { return *row_; }

 private:
  const graph::CsvRow* row_;
  JsonField root_;
};

// Returns the number of layers before the first one with experts: 4 for "([0]*4+[1]*9)".
int64_t DenseLayers(const Arguments& arguments) {
  const std::string text = arguments.Text("moe-layer-freq");
  constexpr std::string_view kBegin = "([0]*";
  if (!text.starts_with(kBegin)) return 0;
  return std::atoll(text.c_str() + kBegin.size());
}

ModelShape WithExpertsOf(ModelShape shape, const Arguments& arguments) {
  shape.experts = arguments.Whole("num-experts", 0);
  if (shape.experts > 0) {
    shape.top_k = arguments.Whole("moe-router-topk", 2);
    shape.expert_feedforward =
        arguments.Whole("moe-ffn-hidden-size", shape.feedforward);
    shape.shared_feedforward =
        arguments.Whole("moe-shared-expert-intermediate-size", 0);
    shape.dense_layers = DenseLayers(arguments);
  }
  shape.mtp_layers = arguments.Whole("mtp-num-layers", 0);
  if (!arguments.Has("multi-latent-attention")) return shape;
  shape.q_rank = arguments.Whole("q-lora-rank", 0);
  shape.kv_rank = arguments.Whole("kv-lora-rank", 32);
  shape.qk_nope = arguments.Whole("qk-head-dim", 128);
  shape.qk_rope = arguments.Whole("qk-pos-emb-head-dim", 64);
  shape.v_dim = arguments.Whole("v-head-dim", 128);
  shape.head_dim = shape.QueryDim();
  return shape;
}

ModelShape ShapeOf(const Arguments& arguments, int64_t tensor) {
  const graph::CsvRow& row = arguments.row();
  ModelShape shape{.layers = row.Whole("layers", 1),
                   .hidden = row.Whole("hidden", 1),
                   .heads = row.Whole("heads", 1)};
  shape.kv_heads = row.WholeOr("groups", 1, shape.heads);
  shape.head_dim = arguments.Whole("kv-channels", shape.hidden / shape.heads);
  shape.is_gated = arguments.Has("swiglu");
  const int64_t plain = 4 * shape.hidden;
  // Megatron-LM's default for a gated feed-forward: two thirds, in steps of 64.
  shape.feedforward =
      row.WholeOr("ffn", 1, shape.is_gated ? plain * 2 / 3 / 64 * 64 : plain);
  const int64_t step =
      arguments.Whole("make-vocab-size-divisible-by", 128) * tensor;
  shape.vocabulary = (kTokens + step - 1) / step * step;
  shape.SetBiases(!arguments.Has("disable-bias-linear"));
  if (arguments.Text("normalization") != "RMSNorm") {
    shape.norm_weights = NormWeights::kScaleAndBias;
  }
  shape.has_rope = arguments.Text("position-embedding-type") == "rope";
  if (!shape.has_rope) {
    shape.learned_positions = arguments.Whole("max-position-embeddings", 0);
  }
  shape.is_tied = !arguments.Has("untie-embeddings-and-output-weights");
  shape = WithExpertsOf(shape, arguments);
  CheckShape(shape, row.Text("id"));
  return shape;
}

TrainingStrategy WithRecomputationOf(TrainingStrategy s,
                                     const Arguments& arguments) {
  const std::string granularity = arguments.Text("recompute-granularity");
  if (granularity == "full") s.recomputation = Recomputation::kFull;
  if (granularity == "selective") {
    s.recomputation = Recomputation::kSelective;
    const bool is_activation =
        Says(arguments.Text("recompute-modules"), "moe_act");
    s.parts = {is_activation ? LayerPart::kMoeActivation
                             : LayerPart::kCoreAttention};
  }
  return s;
}

TrainingStrategy WithKernelsOf(TrainingStrategy s, const Arguments& arguments) {
  const bool is_local = arguments.row().Text("impl") == "local";
  const bool is_unfused =
      is_local || arguments.Text("attention-backend") == "unfused";
  s.attention =
      is_unfused ? AttentionKernel::kUnfused : AttentionKernel::kFlashNew;
  s.has_transformer_engine = !is_local;
  s.overlaps_tensor = arguments.Has("tp-comm-overlap");
  s.is_deterministic = arguments.Has("deterministic-mode");
  // Megatron-LM's default of both is a tenth. The table lacks arguments that are 0, and the
  // tests that have experts with latent attention state 0.
  const bool is_stated_zero = arguments.Has("multi-latent-attention") &&
                              arguments.Whole("num-experts", 0) > 0;
  const double dropout = is_stated_zero ? 0 : .1;
  s.drops_hidden = arguments.Number("hidden-dropout", dropout) > 0;
  s.drops_embedding = s.drops_hidden;
  s.drops_scores = arguments.Number("attention-dropout", dropout) > 0;
  const std::string recipe = arguments.Text("fp8-recipe");
  if (arguments.Has("fp8-format")) s.precision = ProductPrecision::kFp8Delayed;
  if (recipe == "tensorwise") s.precision = ProductPrecision::kFp8Current;
  if (recipe == "blockwise") s.precision = ProductPrecision::kFp8Blockwise;
  return s;
}

TrainingStrategy StrategyOf(const Arguments& arguments) {
  const graph::CsvRow& row = arguments.row();
  TrainingStrategy s;
  // Nodes of GB200 have 4 GPUs, and the tests take two nodes unless they name one.
  const bool is_one_node = Says(row.Text("path"), "1node");
  s.gpus = row.WholeOr("gpus", 1, is_one_node ? 4 : 8);
  s.sequence = row.Whole("seq", 1);
  s.global_batch = row.Whole("gbs", 1);
  s.microbatch = row.Whole("mbs", 1);
  s.tensor = row.Whole("tp", 1);
  s.sequence_parallel = s.tensor > 1 && row.Text("sp") == "1";
  s.pipeline = row.Whole("pp", 1);
  s.context = row.Whole("cp", 1);
  s.expert = row.Whole("ep", 1);
  const bool has_experts = row.WholeOr("experts", 0, 0) > 0;
  s.expert_tensor = has_experts ? row.WholeOr("etp", 1, s.tensor) : 1;
  const int64_t chunk = row.WholeOr("vpp_layers", 1, 0);
  const int64_t stated_chunks =
      arguments.Whole("num-virtual-stages-per-pipeline-rank", 1);
  s.chunks = stated_chunks;
  if (chunk > 0 && stated_chunks == 1) {
    s.chunks = row.Whole("layers", 1) / s.pipeline / chunk;
  }
  if (s.chunks > 1) s.schedule = PipelineSchedule::kInterleaved;
  s.zero = arguments.Has("use-distributed-optimizer") ? 1 : 0;
  s.optimizer_copies =
      arguments.Whole("num-distributed-optimizer-instances", 1);
  if (arguments.Has("use-megatron-fsdp")) {
    s.zero = 3;
    s.fsdp = s.Data();
  }
  return WithRecomputationOf(WithKernelsOf(s, arguments), arguments);
}

const Accelerator& AcceleratorOf(const graph::CsvRow& row,
                                 const TrainingSystems& systems) {
  const std::string& platform = row.Text("platform");
  constexpr std::string_view kPrefix = "dgx_";
  if (!platform.starts_with(kPrefix))
    row.Fail("platform", "dgx_ followed by a GPU");
  return FindAccelerator(systems,
                         std::string_view(platform).substr(kPrefix.size()));
}

TrainingStrategy WithLayout(TrainingStrategy s, const Arguments& arguments,
                            const ModelShape& shape) {
  constexpr std::string_view kKey = "pipeline-model-parallel-layout";
  if (!arguments.Has(kKey)) return s;
  const auto counts = ParseLayout(arguments.Text(kKey), shape);
  if (!counts || static_cast<int64_t>(counts->size()) % s.pipeline != 0) {
    arguments.row().Fail("args", "a pipeline layout of the model's layers");
  }
  s.layout = *counts;
  s.chunks = static_cast<int64_t>(counts->size()) / s.pipeline;
  if (s.chunks > 1) s.schedule = PipelineSchedule::kInterleaved;
  return s;
}

std::string SourceOf(const graph::CsvRow& row) {
  const std::string kind = row.WholeOr("experts", 0, 0) > 0 ? "moe" : "gpt";
  if (row.Text("fsdp") == "1") return kind + " fsdp";
  return kind + (row.Text("impl") == "local" ? " local" : " te") +
         (row.Whole("pp", 1) > 1 ? " pp" : "");
}

}  // namespace

bool IsMemoryTable(const graph::CsvTable& table) {
  return table.places.contains("mem_max_allocated_bytes") &&
         table.places.contains("args");
}

TrainingJob JobOfReading(const graph::CsvRow& row,
                         const TrainingSystems& systems) {
  if (row.Text("precision") == "fp32") {
    row.Fail("precision", "bf16 or fp16 (weights of the products)");
  }
  const nlohmann::json document =
      graph::ParseJson(row.Text("args"), row.Text("id"));
  const JsonField root(document, row.Text("id"));
  const Arguments arguments(row, root);
  if (arguments.Has("optimizer")) {
    row.Fail("args", "none of optimizer, which is not in the model");
  }
  TrainingJob job;
  job.strategy = StrategyOf(arguments);
  job.shape = ShapeOf(arguments, job.strategy.tensor);
  job.strategy = WithLayout(std::move(job.strategy), arguments, job.shape);
  job.cluster = {.gpu = AcceleratorOf(row, systems),
                 .stack = FindStack(systems, "Megatron-Core dev"),
                 .kernels = systems.kernels};
  CheckStrategy(job.shape, job.strategy, row.Text("id"));
  return job;
}

std::vector<Prediction> PredictMemoryTable(const graph::CsvTable& table,
                                           const TrainingSystems& systems) {
  std::vector<Prediction> predictions;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const graph::CsvRow row(table, i);
    if (!row.Has("id")) row.Fail("id", "a name");
    Prediction prediction{
        .id = row.Text("id"),
        .measured_gib = row.Positive("mem_max_allocated_bytes") / kGiBytes};
    try {
      prediction.source = SourceOf(row);
      const TrainingJob job = JobOfReading(row, systems);
      prediction.memory_gib =
          PredictStepMemory(job).stages.back().Total() / kGiBytes;
    } catch (const InputError& error) {
      prediction.reason = error.what();
    }
    predictions.push_back(std::move(prediction));
  }
  return predictions;
}

std::vector<ErrorSummary> SummariseMemory(
    const std::vector<Prediction>& predictions) {
  std::map<std::string, std::vector<double>> sources;
  std::map<std::string, size_t> totals;
  std::vector<double> all;
  for (const Prediction& prediction : predictions) {
    if (prediction.measured_gib == 0) continue;
    ++totals[prediction.source];
    if (prediction.memory_gib == 0) continue;
    all.push_back(prediction.memory_gib / prediction.measured_gib - 1);
    sources[prediction.source].push_back(all.back());
  }
  std::vector<ErrorSummary> summaries;
  size_t total = 0;
  for (const auto& [source, count] : totals) {
    total += count;
    if (sources[source].empty()) continue;
    summaries.push_back(Summarise(source, sources[source], count));
  }
  if (!all.empty()) summaries.push_back(Summarise("all", all, total));
  return summaries;
}

}  // namespace acplan::costmodel
