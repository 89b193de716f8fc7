#include "costmodel/calculon/execution/execution_fields.h"

#include <cstddef>

namespace acplan::costmodel {
namespace {

template <typename Enum, size_t kCount>
std::string_view NameOf(Enum value,
                        const std::array<std::string_view, kCount>& names) {
  return names[static_cast<size_t>(value)];
}

}  // namespace

std::array<ExecutionField, kExecutionKeys.size()> FieldsOf(const Execution& e) {
  return {e.num_procs,
          e.tensor_par,
          e.pipeline_par,
          e.data_par,
          int64_t{e.tensor_par_net},
          int64_t{e.pipeline_par_net},
          int64_t{e.data_par_net},
          e.batch_size,
          e.microbatch_size,
          NameOf(e.datatype, kDatatypeNames),
          e.fused_activation,
          NameOf(e.attention_type, kAttentionTypeNames),
          NameOf(e.activation_recompute, kRecomputeNames),
          e.pipeline_interleaving,
          e.optimizer_sharding,
          NameOf(e.tensor_par_comm_type, kTensorCommTypeNames),
          NameOf(e.tensor_par_overlap, kTensorOverlapNames),
          e.seq_par_ag_redo,
          e.data_par_overlap,
          e.weight_offload,
          e.activations_offload,
          e.optimizer_offload,
          e.training};
}

}  // namespace acplan::costmodel
