#include "graph/run/step_places.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "graph/base/flag.h"

namespace acplan::graph {
namespace {

// The operators that ask cuBLAS for its handle, and so for its memory.
constexpr std::array<std::string_view, 10> kMatrixProducts = {
    "aten.mm",  "aten.addmm", "aten.bmm",        "aten.baddbmm",
    "aten.mv",  "aten.addmv", "aten._scaled_mm", "aten.linear",
    "aten.dot", "aten.vdot"};

std::vector<StorageId> InOrderOfModuleTo(const Trace& trace) {
  // In pre-order, a module's FQN begins with that of the one around it. The
  // root's, its class, is around all.
  std::vector<StorageId> order;
  std::vector<ModuleId> open;
  const auto close = [&] {
    const TraceModule& module = trace.modules[open.back()];
    order.insert(order.end(), module.parameters.begin(),
                 module.parameters.end());
    order.insert(order.end(), module.buffers.begin(), module.buffers.end());
    open.pop_back();
  };
  for (const ModuleId m : trace.modules.ids()) {
    if (trace.modules[m].IsSegment()) continue;
    const std::string_view fqn = trace.modules[m].fqn;
    const auto is_around = [&](ModuleId outer) {
      const std::string_view prefix = trace.modules[outer].fqn;
      return outer == ModuleId{0} ||
             (fqn.size() > prefix.size() && fqn.starts_with(prefix) &&
              fqn[prefix.size()] == '.');
    };
    while (!open.empty() && !is_around(open.back())) close();
    open.push_back(m);
  }
  while (!open.empty()) close();
  return order;
}

// Returns for each storage whether an operator reads or writes to it.
IndexedVector<StorageId, Flag> UsedStorages(const Trace& trace) {
  IndexedVector<StorageId, Flag> is_used(trace.storages.size(), false);
  for (const TraceOperator& op : trace.operators) {
    for (const StorageId s : op.reads) is_used[s] = true;
    for (const StorageId s : op.mutates) is_used[s] = true;
  }
  return is_used;
}

// Adds the storages that an operator reads or writes to.
void AddUsed(const TraceOperator& op, std::set<StorageId>& storages) {
  storages.insert(op.reads.begin(), op.reads.end());
  storages.insert(op.mutates.begin(), op.mutates.end());
}

bool HasState(const Trace& trace, const std::set<StorageId>& storages) {
  return std::ranges::any_of(storages, [&](StorageId s) {
    return trace.storages[s].category == StorageCategory::kOptimizer;
  });
}

// optimizer.step is a bracket of record_function, which clipping before it and
// averages of weights after it are not part of.
struct OptimizerStep {
  OperatorId begin = kNone;  // kNone: there is no bracket that uses state
  std::set<StorageId> storages = {};
};

OptimizerStep FindOptimizerStep(const Trace& trace) {
  OptimizerStep step;
  int depth = 0;
  for (const OperatorId k :
       IdRange(OperatorAt(trace.backward_end), trace.operators.end_id())) {
    const TraceOperator& op = trace.operators[k];
    const std::string_view name = trace.operator_names[op.name];
    if (name.starts_with("profiler._record_function_enter")) {
      if (depth++ == 0) step = {.begin = k};
    } else if (name.starts_with("profiler._record_function_exit")) {
      if (--depth == 0 && HasState(trace, step.storages)) return step;
    } else if (depth > 0) {
      AddUsed(op, step.storages);
    }
  }
  return {};
}

// Returns the first operator of forward or backward that uses state, which is a
// GradScaler's scale; kNone: there is none.
OperatorId FirstUseOfScale(const Trace& trace) {
  for (const OperatorId k : OperatorsIn(0, trace.backward_end)) {
    std::set<StorageId> storages;
    AddUsed(trace.operators[k], storages);
    if (HasState(trace, storages)) return k;
  }
  return kNone;
}

// Tells state of optimizer.step from a GradScaler's tensors (its scale, and what is
// made with it) and from averages of weights, which are made with the model.
void FindState(const Trace& trace, StoragePlaces& places) {
  const OptimizerStep step = FindOptimizerStep(trace);
  places.first_of_state = step.begin;
  places.first_of_scaler = FirstUseOfScale(trace);
  std::set<StorageId> scale;
  if (places.first_of_scaler != kNone) {
    AddUsed(trace.operators[places.first_of_scaler], scale);
  }
  bool is_after_scale = false;
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.category != StorageCategory::kOptimizer ||
        storage.born != kNone || storage.bytes == 0) {
      continue;
    }
    const bool is_of_scaler =
        scale.contains(s) || (is_after_scale && !step.storages.contains(s));
    is_after_scale = scale.contains(s);
    const bool is_state = step.begin == kNone || step.storages.contains(s);
    (is_of_scaler ? places.scaler
     : is_state   ? places.state
                  : places.model)
        .push_back(s);
  }
}

void FindStart(const Trace& trace, StoragePlaces& places) {
  IndexedVector<StorageId, Flag> is_placed(trace.storages.size(), false);
  for (const StorageId s : InOrderOfModuleTo(trace)) {
    if (is_placed[s] || trace.storages[s].born != kNone ||
        trace.storages[s].bytes == 0)
      continue;
    is_placed[s] = true;
    places.model.push_back(s);
  }
  const IndexedVector<StorageId, Flag> is_used = UsedStorages(trace);
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born != kNone || is_placed[s] || storage.bytes == 0) continue;
    switch (storage.category) {
      case StorageCategory::kOptimizer:
        break;  // FindState
      case StorageCategory::kInput:
        places.inputs.push_back(s);
        break;
      case StorageCategory::kGradient:
        break;  // its first microbatch makes it
      case StorageCategory::kBuffer:
        (is_used[s] ? places.model : places.of_libraries).push_back(s);
        break;
      default:
        // The rest is left by earlier steps, and not there yet.
        if (storage.freed == kNever) places.model.push_back(s);
    }
  }
}

void FindTakenPlaces(const Trace& trace, StoragePlaces& places) {
  places.takes_place_of.assign(trace.storages.size(), kNone);
  std::multiset<std::pair<int64_t, StorageId>> freed;  // bytes, storage
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    const bool is_left = storage.born == kNone && storage.freed != kNever &&
                         storage.category != StorageCategory::kInput;
    if (is_left) freed.insert({storage.bytes, s});
  }
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born == kNone || storage.freed != kNever) continue;
    const auto place = freed.lower_bound({storage.bytes, StorageId{0}});
    if (place == freed.end() || place->first != storage.bytes) continue;
    places.takes_place_of[s] = place->second;
    freed.erase(place);
  }
}

void FindAddedGradients(const Trace& trace, StoragePlaces& places) {
  places.becomes_gradient.assign(trace.storages.size(), kNone);
  IndexedVector<StorageId, Flag> is_found(trace.storages.size(), false);
  for (const OperatorId k :
       OperatorsIn(trace.forward_end, trace.backward_end)) {
    const TraceOperator& op = trace.operators[k];
    for (const StorageId gradient : op.mutates) {
      const TraceStorage& storage = trace.storages[gradient];
      const bool is_awaited = storage.born == kNone && !is_found[gradient] &&
                              storage.category == StorageCategory::kGradient;
      if (!is_awaited) continue;
      for (const StorageId read : op.reads) {
        const TraceStorage& term = trace.storages[read];
        if (term.IsOlderThan(trace.forward_end) ||
            term.bytes != storage.bytes ||
            places.becomes_gradient[read] != kNone) {
          continue;
        }
        places.becomes_gradient[read] = gradient;
        is_found[gradient] = true;
        break;
      }
    }
  }
}

}  // namespace

bool IsMatrixProduct(const Trace& trace, OperatorId op) {
  const std::string_view name = trace.operator_names[trace.operators[op].name];
  return std::ranges::find(kMatrixProducts, name.substr(0, name.rfind('.'))) !=
         kMatrixProducts.end();
}

StoragePlaces FindPlaces(const Trace& trace) {
  StoragePlaces places;
  FindStart(trace, places);
  FindState(trace, places);
  FindTakenPlaces(trace, places);
  FindAddedGradients(trace, places);
  return places;
}

}  // namespace acplan::graph
