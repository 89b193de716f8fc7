#include "costmodel/training/score/run_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

using graph::CsvRow;

bool Contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool IsTrue(const CsvRow& row, std::string_view column) {
  const std::string& text = row.Text(column);
  if (text == "1" || text == "True" || text == "true") return true;
  if (text.empty() || text == "0" || text == "False" || text == "false") {
    return false;
  }
  row.Fail(column, "True or False");
}

// Returns the value that a cell names; fails if it is none of the names.
template <typename Value, size_t kCount>
Value ValueNamed(
    const CsvRow& row, std::string_view column,
    const std::array<std::pair<std::string_view, Value>, kCount>& names) {
  std::string expected;
  for (const auto& [name, value] : names) {
    if (row.Text(column) == name) return value;
    expected += fmt::format("{}{}", expected.empty() ? "" : ", ", name);
  }
  row.Fail(column, "one of " + expected);
}

ProductPrecision PrecisionOf(const CsvRow& row) {
  using enum ProductPrecision;
  return ValueNamed<ProductPrecision, 8>(row, "precision",
                                         {{{"bf16", kBf16},
                                           {"fp16", kBf16},
                                           {"fp8_delayed", kFp8Delayed},
                                           {"fp8_current", kFp8Current},
                                           {"fp8_rowwise", kFp8Rowwise},
                                           {"fp8_blockwise", kFp8Blockwise},
                                           {"mxfp8", kMxfp8},
                                           {"nvfp4", kNvfp4}}});
}

AttentionKernel AttentionOf(const CsvRow& row) {
  const std::string& text = row.Text("attention");
  if (Contains(text, "unfused")) return AttentionKernel::kUnfused;
  // Among the fused kernels, FlashAttention 2 has a deterministic backward pass.
  if (Contains(text, "deterministic")) return AttentionKernel::kFlash;
  if (Contains(text, "TE") || Contains(text, "cuDNN") ||
      Contains(text, "flash3")) {
    return AttentionKernel::kFlashNew;
  }
  return AttentionKernel::kFlash;
}

std::set<LayerPart> PartsOf(const CsvRow& row, std::string_view names) {
  const std::optional<std::set<LayerPart>> parts = LayerPartsNamed(names);
  if (!parts) {
    row.Fail("ac",
             "none, full, full:block:N layers or selective: with core_attn, "
             "layernorm, mla_up_proj, mlp, moe, moe_act, shared_experts, "
             "minimal_flash or op");
  }
  return *parts;
}

// Returns the first whole number in a text; 0 if there is none.
int64_t NumberIn(std::string_view text) {
  int64_t number = 0;
  const size_t begin = text.find_first_of("0123456789");
  if (begin == std::string_view::npos) return 0;
  for (size_t i = begin; i < text.size() && i < begin + 9; ++i) {
    if (text[i] < '0' || text[i] > '9') break;
    number = number * 10 + (text[i] - '0');
  }
  return number;
}

TrainingStrategy WithRecomputation(const CsvRow& row,
                                   TrainingStrategy strategy) {
  const std::string& text = row.Text("ac");
  if (text.empty() || text == "none") return strategy;
  if (text.starts_with("full")) {
    strategy.recomputation = Recomputation::kFull;
    strategy.full_layers = NumberIn(text);
    return strategy;
  }
  if (text.starts_with("every:")) {
    strategy.recomputation = Recomputation::kFull;
    strategy.every_layers = NumberIn(text);
    return strategy;
  }
  constexpr std::string_view kSelective = "selective:";
  if (text == "selective:op") {
    strategy.recomputation = Recomputation::kOperators;
    return strategy;
  }
  strategy.recomputation = Recomputation::kSelective;
  const std::string_view names =
      text.starts_with(kSelective)
          ? std::string_view(text).substr(kSelective.size())
          : std::string_view(text);
  strategy.parts = PartsOf(row, names);
  return strategy;
}

TrainingStrategy DegreesOf(const CsvRow& row) {
  TrainingStrategy strategy;
  strategy.gpus = row.Whole("gpus", 1);
  strategy.sequence = row.Whole("seq", 1);
  strategy.global_batch = row.Whole("gbs", 1);
  strategy.microbatch = row.WholeOr("mbs", 1, 0);
  strategy.tensor = row.WholeOr("tp", 1, 1);
  strategy.sequence_parallel = IsTrue(row, "sp") && strategy.tensor > 1;
  strategy.pipeline = row.WholeOr("pp", 1, 1);
  strategy.chunks = row.WholeOr("vp", 1, 1);
  strategy.context = row.WholeOr("cp", 1, 1);
  strategy.expert = row.WholeOr("ep", 1, 1);
  strategy.zero = row.WholeOr("zero", 0, 0);
  strategy.fsdp = row.WholeOr("fsdp", 0, 0);
  const int64_t ranks = strategy.Data() * strategy.context;
  if (strategy.zero >= 2 && strategy.fsdp == 0) strategy.fsdp = ranks;
  if (strategy.fsdp > 1 && strategy.fsdp < ranks) {
    if (ranks % strategy.fsdp != 0) {
      row.Fail("fsdp", fmt::format("a divisor of {} (dp x cp)", ranks));
    }
    strategy.optimizer_copies = ranks / strategy.fsdp;
  }
  const std::string& schedule = row.Text("pp_schedule");
  if (strategy.chunks > 1) strategy.schedule = PipelineSchedule::kInterleaved;
  if (Contains(schedule, "dualpipe")) {
    strategy.schedule = PipelineSchedule::kDualPipe;
  } else if (Contains(schedule, "v-half") || Contains(schedule, "v-min")) {
    strategy.schedule = Contains(schedule, "half") ? PipelineSchedule::kHalfV
                                                   : PipelineSchedule::kMinV;
    strategy.chunks = 2;
  } else if (Contains(schedule, "zbv") || Contains(schedule, "zb-v")) {
    strategy.schedule = PipelineSchedule::kZeroBubbleV;
    strategy.chunks = 2;
  } else if (Contains(schedule, "zb") || Contains(schedule, "zero")) {
    strategy.schedule = PipelineSchedule::kZeroBubble;
  }
  return strategy;
}

TrainingStrategy WithOverlap(const CsvRow& row, TrainingStrategy strategy) {
  const std::string& overlap = row.Text("overlap");
  const bool is_none = overlap.starts_with("none");
  strategy.overlaps_data = !is_none && !Contains(overlap, "no dp");
  if (overlap.empty()) {
    strategy.overlaps_data =
        strategy.fsdp > 1 || strategy.attention != AttentionKernel::kUnfused;
  }
  strategy.overlaps_tensor = Contains(overlap, "userbuffers") ||
                             Contains(overlap, "async tp") ||
                             Contains(overlap, ", tp");
  if (is_none) strategy.overlaps_tensor = false;
  strategy.overlaps_expert = Contains(overlap, "a2a") ||
                             strategy.schedule == PipelineSchedule::kDualPipe;
  const std::string& routing = row.Text("routing");
  strategy.dedupes_tokens =
      Contains(routing, "deepep") || Contains(routing, "hybridep");
  return strategy;
}

TrainingStrategy StrategyOfRow(const CsvRow& row) {
  TrainingStrategy strategy = DegreesOf(row);
  strategy.precision = PrecisionOf(row);
  strategy.attention = AttentionOf(row);
  strategy = WithRecomputation(row, strategy);
  const bool has_wide = Contains(row.Text("grad_dtype"), "fp32");
  strategy.gradient_bytes = has_wide ? 4 : 2;
  // With full sharding, gradients that are added in float32 are sent in 16 bits, unless the
  // row says that they are reduced in float32.
  const bool sends_wide =
      has_wide &&
      (strategy.fsdp <= 1 || Contains(row.Text("grad_dtype"), "reduce"));
  strategy.gradient_reduce_bytes = sends_wide ? 4 : 2;
  if (Contains(row.Text("offload"), "activations")) {
    strategy.offloaded_layers = NumberIn(row.Text("offload"));
  }
  const std::string& graphs = row.Text("cuda_graphs");
  if (graphs.starts_with("full")) {
    strategy.graphs = CudaGraphs::kFull;
  } else if (!graphs.empty() && graphs != "none") {
    strategy.graphs = CudaGraphs::kPartial;
  }
  strategy = WithOverlap(row, strategy);
  const std::string& notes = row.Text("notes");
  strategy.drops_hidden = strategy.attention == AttentionKernel::kUnfused ||
                          Contains(notes, "dropout");
  strategy.drops_scores = strategy.drops_hidden;
  strategy.drops_embedding = strategy.drops_hidden;
  strategy.balances_ends = row.Text("software").starts_with("nanotron");
  return strategy;
}

Cluster ClusterOfRow(const CsvRow& row, const TrainingSystems& systems,
                     int64_t gpus) {
  Cluster cluster{.gpu = FindAccelerator(systems, row.Text("gpu")),
                  .stack = FindStack(systems, row.Text("software")),
                  .kernels = systems.kernels};
  // NVLink joins at least the GPUs of a node. In racks of 72, jobs of powers of two use 64.
  cluster.domain = std::max(row.WholeOr("nvlink_domain", 0, 8),
                            row.WholeOr("gpus_per_node", 1, 8));
  if (cluster.domain == 72 && gpus > 64) cluster.domain = 64;
  cluster.network_rate = row.PositiveOr("internode_gbs_per_gpu", 50) * 1e9;
  return cluster;
}

TrainingJob JobOfRow(const CsvRow& row, const TrainingSystems& systems) {
  TrainingJob job{.shape = ShapeOfRow(row), .strategy = StrategyOfRow(row)};
  job.cluster = ClusterOfRow(row, systems, job.strategy.gpus);
  const ProductPrecision precision = job.strategy.precision;
  job.strategy.fuses_experts = job.cluster.stack.fuses_experts &&
                               precision != ProductPrecision::kFp8Delayed &&
                               precision != ProductPrecision::kFp8Current;
  CheckStrategy(job.shape, job.strategy, row.Text("id"));
  return job;
}

std::string StackOf(const CsvRow& row) {
  const std::string& gpu = row.Text("gpu");
  return fmt::format("{}, {}, {}, {}", row.Text("source"),
                     gpu.substr(0, gpu.find('-')), row.Text("precision"),
                     row.Has("experts") ? "experts" : "dense");
}

std::string QuestionOf(const CsvRow& row) {
  std::string question = StackOf(row);
  for (const char* column : {"software", "model", "layers", "hidden", "ffn",
                             "gpu", "gpus", "seq", "gbs"}) {
    question += ", " + row.Text(column);
  }
  return question;
}

}  // namespace

ModelShape ShapeOfRow(const CsvRow& row) {
  ModelShape shape{.layers = row.Whole("layers", 1),
                   .hidden = row.Whole("hidden", 1),
                   .heads = row.Whole("heads", 1),
                   .vocabulary = row.Whole("vocab", 1)};
  shape.kv_heads = row.WholeOr("kv_heads", 1, shape.heads);
  shape.head_dim = row.WholeOr("head_dim", 1, shape.hidden / shape.heads);
  shape.feedforward = row.WholeOr("ffn", 1, 4 * shape.hidden);
  enum class Act { kPlain, kGated };
  shape.is_gated =
      ValueNamed<Act, 6>(row, "act",
                         {{{"gelu", Act::kPlain},
                           {"relu", Act::kPlain},
                           {"squared_relu", Act::kPlain},
                           {"swiglu", Act::kGated},
                           {"swiglu_clamped", Act::kGated},
                           {"geglu", Act::kGated}}}) == Act::kGated;
  if (row.Text("norm").starts_with("layernorm")) {
    shape.norm_weights = NormWeights::kScaleAndBias;
  }
  shape.SetBiases(row.Text("act") == "gelu" &&
                  !row.Text("software").starts_with("llm-foundry"));
  shape.has_rope = row.Text("pos") == "rope";
  shape.is_tied = IsTrue(row, "tied");
  if (row.Text("pos") == "learned") {
    shape.learned_positions = row.WholeOr("seq", 1, 0);
  }
  shape.experts = row.WholeOr("experts", 0, 0);
  if (shape.IsMoe()) {
    shape.top_k = row.Whole("topk", 1);
    shape.expert_feedforward = row.Whole("expert_ffn", 1);
    shape.shared_feedforward = row.WholeOr("shared_ffn", 0, 0);
    shape.dense_layers = row.WholeOr("dense_layers", 0, 0);
  }
  // DeepSeek's routers choose among this many of 8 groups of experts.
  if (shape.experts == 256 && row.Text("family") == "moe-mla") {
    shape.routed_groups = 4;
  }
  shape.is_clamped = Contains(row.Text("act"), "clamped");
  shape.mtp_layers = row.WholeOr("mtp_layers", 0, 0);
  shape.kv_rank = row.WholeOr("mla_kv_rank", 0, 0);
  if (shape.IsLatent()) {
    shape.q_rank = row.WholeOr("mla_q_rank", 0, 0);
    shape.qk_nope = row.Whole("mla_qk_nope", 1);
    shape.qk_rope = row.Whole("mla_qk_rope", 1);
    shape.v_dim = row.Whole("mla_v", 1);
  }
  if (Contains(row.Text("features"), "sliding_window")) {
    const int64_t window = NumberIn(row.Text("attention"));
    shape.sliding_window = window > 0 ? window : 128;
    shape.full_layers = shape.layers / 2;
  }
  CheckShape(shape, row.Text("id"));
  return shape;
}

std::vector<TrainingRun> ReadRuns(const graph::CsvTable& table,
                                  const TrainingSystems& systems) {
  std::vector<TrainingRun> runs;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const CsvRow row(table, i);
    if (!row.Has("id")) row.Fail("id", "a name");
    if (!row.Has("source")) row.Fail("source", "a name");
    TrainingRun run{.id = row.Text("id"),
                    .source = row.Text("source"),
                    .seconds = row.Positive("time_s"),
                    .memory_gib = row.PositiveOr("mem_gib", 0)};
    run.group = row.Text(row.Has("group") ? "group" : "id");
    run.stack = StackOf(row);
    run.question = QuestionOf(row);
    run.is_allocated = row.Text("mem_kind").starts_with("allocated");
    try {
      run.job = JobOfRow(row, systems);
    } catch (const InputError& error) {
      run.reason = error.what();
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

}  // namespace acplan::costmodel
