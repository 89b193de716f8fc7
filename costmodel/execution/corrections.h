#pragma once

#include <array>
#include <string_view>

namespace acplan::costmodel {

// The simplifications of Calculon, each behind a switch: false keeps its
// arithmetic. docs/llm_cost_model.md says what each one changes, and by how
// much.
struct Corrections {
  bool recompute_totals = false;
  bool attention_recompute_all = false;
  bool attention_recompute_keeps_input = false;
  bool sharded_checkpoints = false;
  bool gathered_input_stored = false;
  bool row_parallel_input_stored = false;
  bool pipe_tile_once = false;
  bool exposed_by_stage = false;
  bool full_precision_gradients = false;
  bool optimizer_traffic = false;
  bool dropout_gradient_width = false;
  bool live_gradients = false;
  bool optimizer_offload_once = false;
  bool optimizer_overlap_once = false;
  bool smooth_efficiency = false;
  bool ring_collectives = false;
  bool uneven_pipelines = false;
  bool one_batch_size = false;
  bool ties_by_memory = false;

  bool operator==(const Corrections&) const = default;
};

struct Correction {
  std::string_view name;
  bool Corrections::*is_on;
  std::string_view summary;
};

inline constexpr std::array<Correction, 19> kCorrections = {{
    {"recompute_totals", &Corrections::recompute_totals,
     "recomputed FLOPs and bytes count each layer once, not the running sum"},
    {"attention_recompute_all", &Corrections::attention_recompute_all,
     "attn_only recomputes the product with the values too"},
    {"attention_recompute_keeps_input",
     &Corrections::attention_recompute_keeps_input,
     "attn_only keeps the input of the query, key and value projections"},
    {"sharded_checkpoints", &Corrections::sharded_checkpoints,
     "checkpoints are sharded under sequence parallelism"},
    {"gathered_input_stored", &Corrections::gathered_input_stored,
     "an overlapped all-gather that is not redone stores its output"},
    {"row_parallel_input_stored", &Corrections::row_parallel_input_stored,
     "an overlapped row-parallel layer stores its input under ar"},
    {"pipe_tile_once", &Corrections::pipe_tile_once,
     "the exposed tile of a pipe counts as communication only"},
    {"exposed_by_stage", &Corrections::exposed_by_stage,
     "exposed communication is that of the stage and the block asked for"},
    {"full_precision_gradients", &Corrections::full_precision_gradients,
     "every block keeps float32 gradients"},
    {"optimizer_traffic", &Corrections::optimizer_traffic,
     "the optimizer step reads gradients and reads and writes its state"},
    {"dropout_gradient_width", &Corrections::dropout_gradient_width,
     "gradients of a dropout have the width of the datatype"},
    {"live_gradients", &Corrections::live_gradients,
     "activation gradients of two neighbouring layers live at once"},
    {"optimizer_offload_once", &Corrections::optimizer_offload_once,
     "the optimizer's state moves once a batch"},
    {"optimizer_overlap_once", &Corrections::optimizer_overlap_once,
     "the optimizer step hides data-parallel communication once"},
    {"smooth_efficiency", &Corrections::smooth_efficiency,
     "efficiency is interpolated between the steps of a curve"},
    {"ring_collectives", &Corrections::ring_collectives,
     "collectives pay a latency a step; half an all-reduce costs half"},
    {"uneven_pipelines", &Corrections::uneven_pipelines,
     "searches try pipelines that do not divide the number of blocks"},
    {"one_batch_size", &Corrections::one_batch_size,
     "searches compare strategies of exactly the given batch"},
    {"ties_by_memory", &Corrections::ties_by_memory,
     "searches prefer less memory at equal rates"},
}};

inline Corrections AllCorrections() {
  Corrections all;
  for (const Correction& correction : kCorrections)
    all.*correction.is_on = true;
  return all;
}

}  // namespace acplan::costmodel
