#include "costmodel/calculon/execution/execution.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/calculon/execution/execution_fields.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/nearest_names.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

constexpr int64_t kMostSize = INT32_MAX;

template <typename Enum, size_t kCount>
Enum ReadEnum(const JsonField& field,
              const std::array<std::string_view, kCount>& names) {
  const std::string name = field.String();
  const auto match = std::ranges::find(names, name);
  if (match == names.end())
    field.Fail(fmt::format("{}", fmt::join(names, ", ")));
  return static_cast<Enum>(match - names.begin());
}

int ReadTier(const JsonField& field) {
  return static_cast<int>(field.Int(0, kMostSize));
}

void RefuseUnknownKeys(const JsonField& root) {
  const std::vector<std::string> known_keys(kExecutionKeys.begin(),
                                            kExecutionKeys.end());
  for (const auto& [key, unused] : root.json().items()) {
    if (std::ranges::find(known_keys, key) != known_keys.end()) continue;
    const std::vector<std::string> near =
        graph::NearestNames(key, known_keys, 1);
    root.Get(key).Complain(fmt::format(
        "expected only the {} keys of an execution{}", kExecutionKeys.size(),
        near.empty() ? "" : fmt::format("; did you mean {}?", near.front())));
  }
}

Execution ReadKeys(const JsonField& root) {
  const auto size = [&](std::string_view key) {
    return root.Get(key).Int(1, kMostSize);
  };
  const auto flag = [&](std::string_view key) { return root.Get(key).Bool(); };
  return {.num_procs = size("num_procs"),
          .tensor_par = size("tensor_par"),
          .pipeline_par = size("pipeline_par"),
          .data_par = size("data_par"),
          .tensor_par_net = ReadTier(root.Get("tensor_par_net")),
          .pipeline_par_net = ReadTier(root.Get("pipeline_par_net")),
          .data_par_net = ReadTier(root.Get("data_par_net")),
          .batch_size = size("batch_size"),
          .microbatch_size = size("microbatch_size"),
          .datatype = ReadEnum<Datatype>(root.Get("datatype"), kDatatypeNames),
          .fused_activation = flag("fused_activation"),
          .attention_type = ReadEnum<AttentionType>(root.Get("attention_type"),
                                                    kAttentionTypeNames),
          .activation_recompute = ReadEnum<Recompute>(
              root.Get("activation_recompute"), kRecomputeNames),
          .pipeline_interleaving = size("pipeline_interleaving"),
          .optimizer_sharding = flag("optimizer_sharding"),
          .tensor_par_comm_type = ReadEnum<TensorCommType>(
              root.Get("tensor_par_comm_type"), kTensorCommTypeNames),
          .tensor_par_overlap = ReadEnum<TensorOverlap>(
              root.Get("tensor_par_overlap"), kTensorOverlapNames),
          .seq_par_ag_redo = flag("seq_par_ag_redo"),
          .data_par_overlap = flag("data_par_overlap"),
          .weight_offload = flag("weight_offload"),
          .activations_offload = flag("activations_offload"),
          .optimizer_offload = flag("optimizer_offload"),
          .training = flag("training")};
}

void CheckSizes(const JsonField& root, const Execution& execution) {
  const double product = static_cast<double>(execution.tensor_par) *
                         static_cast<double>(execution.pipeline_par) *
                         static_cast<double>(execution.data_par);
  if (product != static_cast<double>(execution.num_procs)) {
    root.Get("num_procs")
        .Fail(
            fmt::format("tensor_par * pipeline_par * data_par = {}", product));
  }
  if (execution.batch_size % execution.data_par != 0) {
    root.Get("batch_size")
        .Fail(fmt::format("a multiple of data_par ({})", execution.data_par));
  }
  const int64_t local_batch = execution.batch_size / execution.data_par;
  if (local_batch % execution.microbatch_size != 0) {
    root.Get("microbatch_size")
        .Fail(fmt::format("a divisor of batch_size / data_par ({})",
                          local_batch));
  }
  if (execution.pipeline_par == 1 && execution.pipeline_interleaving != 1) {
    root.Get("pipeline_interleaving").Fail("1 if pipeline_par is 1");
  }
}

void CheckChoices(const JsonField& root, const Execution& execution) {
  const auto refuse = [&](bool is_wrong, std::string_view key,
                          std::string_view expected) {
    if (is_wrong) root.Get(key).Fail(expected);
  };
  const bool trains = execution.training;
  const bool is_full = execution.activation_recompute == Recompute::kFull;
  refuse(execution.activation_recompute != Recompute::kNone && !trains,
         "activation_recompute", "\"none\" if training is false");
  refuse(execution.optimizer_sharding && execution.data_par == 1,
         "optimizer_sharding", "false if data_par is 1");
  refuse(execution.tensor_par_overlap != TensorOverlap::kNone &&
             execution.tensor_par == 1,
         "tensor_par_overlap", "\"none\" if tensor_par is 1");
  refuse(execution.seq_par_ag_redo && !execution.IsSequenceParallel(),
         "seq_par_ag_redo", "false if tensor_par_comm_type is not \"rs_ag\"");
  refuse(execution.seq_par_ag_redo && is_full, "seq_par_ag_redo",
         "false if activation_recompute is \"full\"");
  refuse(execution.data_par_overlap && !trains, "data_par_overlap",
         "false if training is false");
  refuse(execution.data_par_overlap && execution.data_par == 1,
         "data_par_overlap", "false if data_par is 1");
  refuse(execution.optimizer_offload && !trains, "optimizer_offload",
         "false if training is false");
}

}  // namespace

Execution ParseExecution(const JsonField& field) {
  const Execution execution = ReadKeys(field);
  RefuseUnknownKeys(field);
  CheckSizes(field, execution);
  CheckChoices(field, execution);
  return execution;
}

Execution ParseExecution(std::string_view text, std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  return ParseExecution(JsonField(document, std::string(file)));
}

Execution ReadExecution(const std::filesystem::path& path) {
  return ParseExecution(graph::ReadJsonText(path), path.string());
}

}  // namespace acplan::costmodel
