#include "costmodel/calculon/llm/block.h"

#include <string_view>

#include "costmodel/calculon/layers/layers.h"

namespace acplan::costmodel {
namespace {

struct RecomputeFlags {
  bool all;
  bool attention;
  bool qkv_input;
  bool mlp_input;
};

RecomputeFlags FlagsOf(const Execution& execution) {
  RecomputeFlags flags{};
  flags.all = execution.activation_recompute == Recompute::kFull;
  flags.attention =
      flags.all || execution.activation_recompute == Recompute::kAttentionOnly;
  flags.qkv_input = execution.seq_par_ag_redo || flags.attention;
  flags.mlp_input = execution.seq_par_ag_redo || flags.all;
  return flags;
}

LayerContext ContextOf(const Execution& execution) {
  return {.bytes_per_element = BytesPerElement(execution.datatype),
          .optimizer_shards = execution.optimizer_sharding
                                  ? static_cast<double>(execution.data_par)
                                  : 1,
          .tensor_par = static_cast<double>(execution.tensor_par),
          .comm_type = execution.tensor_par_comm_type};
}

// The input of all parts of a block.
struct BlockPlan {
  const Execution& execution;
  LayerContext context;
  BlockShape shape;
  RecomputeFlags flags;
};

// The layers that make queries, keys and values.
struct Projections {
  int query = 0;
  int key = 0;
  int value = 0;
};

Projections AddProjections(Block& block, const BlockPlan& plan) {
  const Execution& execution = plan.execution;
  const LayerContext& context = plan.context;
  const BlockShape& shape = plan.shape;
  const RecomputeFlags& flags = plan.flags;
  const LayerFlags shared_input{.is_recomputed = flags.all,
                                .reuses_activation = true,
                                .stores_activation = false};
  const LayerFlags forked{.is_recomputed = flags.qkv_input,
                          .stores_activation = !flags.qkv_input};
  const LayerFlags gathered{.is_recomputed = flags.all,
                            .is_communication_repeated = flags.qkv_input};
  const bool is_multiquery =
      execution.attention_type == AttentionType::kMultiquery;
  const double own_heads = shape.heads_size / shape.tensor_par;
  const double key_size = is_multiquery ? shape.head_size : own_heads;
  Projections projections;
  const auto add_keys_and_values = [&](int input) {
    projections.key =
        block.Add(Linear(context, "AttnBlock_Key",
                         {shape.rows, shape.hidden, key_size}, shared_input),
                  input);
    projections.value =
        block.Add(Linear(context, "AttnBlock_Value",
                         {shape.rows, shape.hidden, key_size}, shared_input),
                  input);
  };
  if (execution.tensor_par_overlap == TensorOverlap::kNone) {
    block.Add(
        TensorParallelComm(context, "AttnBlock_F", shape.activation, false,
                           {.is_communication_repeated = flags.qkv_input}));
    const int fork = block.Add(
        Fork(context, "AttnBlock_Multihead_Fork", shape.activation, 3, forked));
    projections.query =
        block.Add(Linear(context, "AttnBlock_Query",
                         {shape.rows, shape.hidden, own_heads}, shared_input));
    add_keys_and_values(fork);
  } else if (is_multiquery) {
    projections.query = block.Add(OverlappedLinear(
        context, "AttnBlock_Query_AG",
        {shape.rows, shape.hidden, shape.heads_size}, false, gathered));
    Layer fork =
        Fork(context, "AttnBlock_KV_Fork", shape.activation, 2, forked);
    fork.reads_gathered_input = true;
    add_keys_and_values(block.Add(fork));
  } else {
    projections.query = projections.key = projections.value =
        block.Add(OverlappedLinear(
            context, "AttnBlock_QKV_AG",
            {shape.rows, shape.hidden, shape.heads_size * 3}, false, gathered));
  }
  return projections;
}

// The names of a linear layer whose output the tensor-parallel peers add up, for the layer
// alone and for the layer with the sum in tiles.
struct ReducedLinearNames {
  std::string_view alone;
  std::string_view overlapped;
  std::string_view comm;
};

void AddReducedLinear(Block& block, const BlockPlan& plan, double c_in,
                      const ReducedLinearNames& names) {
  const auto& [execution, context, shape, flags] = plan;
  if (execution.tensor_par_overlap != TensorOverlap::kNone) {
    block.Add(OverlappedLinear(
        context, names.overlapped, {shape.rows, c_in, shape.hidden}, true,
        {.is_recomputed = flags.all, .is_communication_repeated = flags.all}));
    return;
  }
  block.Add(Linear(context, names.alone,
                   {shape.rows, c_in / shape.tensor_par, shape.hidden},
                   {.is_recomputed = flags.all}));
  block.Add(TensorParallelComm(
      context, names.comm, shape.activation, true,
      {.is_communication_repeated = flags.all, .stores_activation = false}));
}

// The names of the layers around attention and MLP: the residual stream is forked before,
// and added afterwards.
struct ResidualNames {
  std::string_view fork;
  std::string_view norm;
  std::string_view dropout;
  std::string_view residual;
};

// Adds the layers before attention or MLP. Returns the index of the fork.
int AddFirst(Block& block, const BlockPlan& plan, const ResidualNames& names) {
  const auto& [execution, context, shape, flags] = plan;
  const int fork = block.Add(Fork(context, names.fork, shape.shared_activation,
                                  2, {.is_recomputed = flags.all}));
  block.Add(LayerNorm(context, names.norm, shape.shared_activation,
                      shape.hidden,
                      {.is_recomputed = flags.all,
                       .reuses_activation = true,
                       .stores_activation = false}));
  return fork;
}

void AddLast(Block& block, const BlockPlan& plan, const ResidualNames& names,
             int fork) {
  const auto& [execution, context, shape, flags] = plan;
  const int dropout =
      block.Add(DropOut(context, names.dropout, shape.shared_activation,
                        {.is_recomputed = flags.all}));
  block.Add(ElementWise(context, names.residual, shape.shared_activation,
                        shape.shared_activation,
                        {.is_recomputed = flags.all,
                         .reuses_activation = true,
                         .stores_activation = false}),
            dropout, fork);
}

void AddAttention(Block& block, const BlockPlan& plan) {
  constexpr ResidualNames kNames = {"AttnBlock_Fork", "AttnBlock_LayerNorm",
                                    "AttnBlock_DropOut", "AttnBlock_Residual"};
  const auto& [execution, context, shape, flags] = plan;
  const int fork = AddFirst(block, plan, kNames);
  const Projections projections = AddProjections(block, plan);
  const double batch = shape.microbatch * shape.heads;
  const double scores =
      shape.heads * (shape.seq * shape.seq) * shape.microbatch;
  const LayerFlags unsaved{.is_recomputed = flags.attention,
                           .stores_output = !flags.attention};
  block.Add(
      BatchMatMul(context, "AttnBlock_Multihead_Key_Query",
                  {batch, shape.seq, shape.head_size, shape.seq}, unsaved),
      projections.query, projections.key);
  block.Add(SoftMax(context, "AttnBlock_Multihead_SoftMax", scores, unsaved));
  const int dropout =
      block.Add(DropOut(context, "AttnBlock_Multihead_DropOut", scores,
                        {.is_recomputed = flags.attention,
                         .stores_activation = !flags.attention}));
  block.Add(BatchMatMul(context, "AttnBlock_Multihead_Attn",
                        {batch, shape.seq, shape.seq, shape.head_size},
                        {.is_recomputed = flags.all}),
            dropout, projections.value);
  AddReducedLinear(block, plan, shape.heads_size,
                   {"AttnBlock_MLP", "AttnBlock_MLP_RS", "AttnBlock_G"});
  AddLast(block, plan, kNames, fork);
}

void AddMlp(Block& block, const BlockPlan& plan) {
  constexpr ResidualNames kNames = {"MlpBlock_Fork", "MlpBlock_LayerNorm",
                                    "MlpBlock_DropOut", "MlpBlock_Residual"};
  const auto& [execution, context, shape, flags] = plan;
  const int fork = AddFirst(block, plan, kNames);
  const double own_feedforward = shape.feedforward / shape.tensor_par;
  if (execution.tensor_par_overlap == TensorOverlap::kNone) {
    block.Add(
        TensorParallelComm(context, "MlpBlock_F", shape.activation, false,
                           {.is_communication_repeated = flags.mlp_input}));
    block.Add(Linear(
        context, "MlpBlock_Mlp1", {shape.rows, shape.hidden, own_feedforward},
        {.is_recomputed = flags.all, .stores_activation = !flags.mlp_input}));
  } else {
    block.Add(OverlappedLinear(context, "MlpBlock_Mlp1_AG",
                               {shape.rows, shape.hidden, shape.feedforward},
                               false,
                               {.is_recomputed = flags.all,
                                .is_communication_repeated = flags.mlp_input}));
  }
  block.Add(Activation(context, "MlpBlock_GeLU", own_feedforward * shape.rows,
                       execution.fused_activation,
                       {.is_recomputed = flags.all}));
  AddReducedLinear(block, plan, shape.feedforward,
                   {"MlpBlock_Mlp2", "MlpBlock_Mlp2_RS", "MlpBlock_G"});
  AddLast(block, plan, kNames, fork);
}

}  // namespace

BlockShape ShapeOf(const Model& model, const Execution& execution) {
  BlockShape shape{};
  shape.tensor_par = static_cast<double>(execution.tensor_par);
  shape.hidden = static_cast<double>(model.hidden);
  shape.feedforward = static_cast<double>(model.feedforward);
  shape.heads = static_cast<double>(model.attn_heads / execution.tensor_par);
  shape.head_size = static_cast<double>(model.attn_size);
  shape.heads_size = static_cast<double>(model.attn_heads) * shape.head_size;
  shape.seq = static_cast<double>(model.seq_size);
  shape.microbatch = static_cast<double>(execution.microbatch_size);
  shape.rows = shape.microbatch * shape.seq;
  shape.activation = shape.rows * shape.hidden;
  shape.shared_activation = execution.IsSequenceParallel()
                                ? shape.rows / shape.tensor_par * shape.hidden
                                : shape.activation;
  return shape;
}

Block BuildBlock(const Model& model, const Execution& execution) {
  const BlockPlan plan{.execution = execution,
                       .context = ContextOf(execution),
                       .shape = ShapeOf(model, execution),
                       .flags = FlagsOf(execution)};
  Block block;
  AddAttention(block, plan);
  AddMlp(block, plan);
  return block;
}

}  // namespace acplan::costmodel
