#include "graph/run/evaluation.h"

#include <algorithm>
#include <string_view>

namespace acplan::graph {
namespace {

bool IsDropout(const Trace& trace, const TraceOperator& op) {
  const std::string_view name = trace.operator_names[op.name];
  return name.starts_with("aten.native_dropout.") && op.reads.size() == 1;
}

// Returns the sums that an attention keeps for the backward pass alone, which its kernel
// leaves out without gradients; kNone: there are none.
StorageId SumsOfAttention(const Trace& trace, const TraceOperator& op) {
  const std::string_view name = trace.operator_names[op.name];
  const bool has_sums =
      name.starts_with("aten._scaled_dot_product_efficient_attention.") ||
      name.starts_with("aten._scaled_dot_product_cudnn_attention.");
  return has_sums && op.results.size() > 1
             ? trace.tensors[op.results[1]].storage
             : StorageId(kNone);
}

}  // namespace

LivedStep EvaluationOf(const Trace& trace) {
  LivedStep evaluation;
  const StepId end{trace.forward_end};
  for (const OperatorId k : OperatorsIn(0, trace.forward_end)) {
    evaluation.steps.push_back({.op = k, .redone = kNone});
  }
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    const bool is_made =
        storage.born != kNone && StartOf(storage.born) < trace.forward_end;
    if (!is_made) {
      evaluation.lives.push_back({.storage = s, .begin = end, .end = end});
      continue;
    }
    evaluation.lives.push_back(
        {.storage = s,
         .begin = StepId{StartOf(storage.born)},
         .end = std::min(StepId{std::min(storage.scope_end, storage.freed)},
                         end)});
  }
  // From the last to the first, as the input may be a dropout's result itself.
  for (Time time = trace.forward_end - 1; time >= 0; --time) {
    const TraceOperator& op = trace.operators[OperatorAt(time)];
    const StorageId sums = SumsOfAttention(trace, op);
    if (sums != kNone) {
      Life& life = evaluation.lives[OriginalLife(sums)];
      life.begin = life.end = end;
    }
    if (!IsDropout(trace, op)) continue;
    Life& input = evaluation.lives[OriginalLife(op.reads.front())];
    for (const StorageId s : op.creates) {
      Life& result = evaluation.lives[OriginalLife(s)];
      input.end = std::max(input.end, result.end);
      result.begin = result.end = end;
    }
  }
  return evaluation;
}

}  // namespace acplan::graph
