#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "costmodel/calculon/hardware/datatype.h"

namespace acplan::graph {
class JsonField;
}

namespace acplan::costmodel {

enum class AttentionType : uint8_t { kMultihead, kMultiquery };
inline constexpr std::array<std::string_view, 2> kAttentionTypeNames = {
    "multihead", "multiquery"};

enum class Recompute : uint8_t { kNone, kAttentionOnly, kFull };
inline constexpr std::array<std::string_view, 3> kRecomputeNames = {
    "none", "attn_only", "full"};

// The exchange of tensor-parallel activations: all-reduce; all-reduce, but scattered for
// the pipeline's sends; reduce-scatter and all-gather (sequence parallelism).
enum class TensorCommType : uint8_t { kAllReduce, kScatteredSend, kScattered };
inline constexpr std::array<std::string_view, 3> kTensorCommTypeNames = {
    "ar", "p2p_rs_ag", "rs_ag"};

enum class TensorOverlap : uint8_t { kNone, kRing, kPipe };
inline constexpr std::array<std::string_view, 3> kTensorOverlapNames = {
    "none", "ring", "pipe"};

// A strategy for training or running a model on a system. The members are the keys of the
// file, docs/file_formats.md, "Execution".
struct Execution {
  int64_t num_procs = 1;
  int64_t tensor_par = 1;
  int64_t pipeline_par = 1;
  int64_t data_par = 1;
  int tensor_par_net = 0;
  int pipeline_par_net = 0;
  int data_par_net = 0;
  int64_t batch_size = 1;
  int64_t microbatch_size = 1;
  Datatype datatype = Datatype::kFloat16;
  bool fused_activation = false;
  AttentionType attention_type = AttentionType::kMultihead;
  Recompute activation_recompute = Recompute::kNone;
  int64_t pipeline_interleaving = 1;
  bool optimizer_sharding = false;
  TensorCommType tensor_par_comm_type = TensorCommType::kAllReduce;
  TensorOverlap tensor_par_overlap = TensorOverlap::kNone;
  bool seq_par_ag_redo = false;
  bool data_par_overlap = false;
  bool weight_offload = false;
  bool activations_offload = false;
  bool optimizer_offload = false;
  bool training = true;

  bool operator==(const Execution&) const = default;

  int64_t NumMicrobatches() const {
    return batch_size / data_par / microbatch_size;
  }
  bool IsSequenceParallel() const {
    return tensor_par_comm_type == TensorCommType::kScattered;
  }
};

inline constexpr std::array<std::string_view, 23> kExecutionKeys = {
    "num_procs",
    "tensor_par",
    "pipeline_par",
    "data_par",
    "tensor_par_net",
    "pipeline_par_net",
    "data_par_net",
    "batch_size",
    "microbatch_size",
    "datatype",
    "fused_activation",
    "attention_type",
    "activation_recompute",
    "pipeline_interleaving",
    "optimizer_sharding",
    "tensor_par_comm_type",
    "tensor_par_overlap",
    "seq_par_ag_redo",
    "data_par_overlap",
    "weight_offload",
    "activations_offload",
    "optimizer_offload",
    "training"};

// Reads docs/file_formats.md, "Execution": exactly the 23 keys, consistent with
// each other. Throws InputError, "FILE: path: ...".
Execution ReadExecution(const std::filesystem::path& path);
Execution ParseExecution(std::string_view text, std::string_view file);
// Parses an execution that is a part of a document.
Execution ParseExecution(const graph::JsonField& field);

}  // namespace acplan::costmodel
