#pragma once

#include "graph/trace/trace.h"

namespace acplan::graph {

// Ids of traces as tests write them: trace.operators[3_op].reads = {0_s, 2_s}.
inline namespace trace_ids {

constexpr ModuleId operator""_module(unsigned long long index) {
  return IdAt<ModuleId>(index);
}
constexpr CallId operator""_call(unsigned long long index) {
  return IdAt<CallId>(index);
}
constexpr OperatorId operator""_op(unsigned long long index) {
  return IdAt<OperatorId>(index);
}
constexpr OperatorNameId operator""_name(unsigned long long index) {
  return IdAt<OperatorNameId>(index);
}
constexpr StorageId operator""_s(unsigned long long index) {
  return IdAt<StorageId>(index);
}
constexpr TensorId operator""_t(unsigned long long index) {
  return IdAt<TensorId>(index);
}
constexpr SavedId operator""_saved(unsigned long long index) {
  return IdAt<SavedId>(index);
}
constexpr SourceId operator""_source(unsigned long long index) {
  return IdAt<SourceId>(index);
}
constexpr StepId operator""_step(unsigned long long index) {
  return IdAt<StepId>(index);
}
constexpr MovedId operator""_moved(unsigned long long index) {
  return IdAt<MovedId>(index);
}

}  // namespace trace_ids
}  // namespace acplan::graph
