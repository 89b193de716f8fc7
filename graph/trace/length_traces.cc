#include "graph/trace/length_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <iterator>
#include <map>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/allocation.h"

namespace acplan::graph {
namespace {

// A trace without its workspaces, and their bytes by operator.
struct PlainTrace {
  Trace trace;
  std::map<OperatorId, int64_t> workspaces = {};
};

void Renumber(std::vector<StorageId>& storages,
              const IndexedVector<StorageId, StorageId>& place) {
  std::erase_if(storages, [&](StorageId s) { return place[s] == kNone; });
  for (StorageId& s : storages) s = place[s];
}

PlainTrace WithoutWorkspaces(Trace trace) {
  PlainTrace plain;
  IndexedVector<StorageId, StorageId> place(trace.storages.size(), kNone);
  IndexedVector<StorageId, TraceStorage> storages;
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born != kNone &&
        !std::ranges::binary_search(trace.operators[storage.born].outputs, s)) {
      plain.workspaces[storage.born] += AllocatedBytes(storage.bytes);
      continue;
    }
    place[s] = storages.end_id();
    storages.push_back(storage);
  }
  trace.storages = std::move(storages);
  for (TraceModule& module : trace.modules) {
    Renumber(module.parameters, place);
    Renumber(module.buffers, place);
  }
  for (TraceCall& call : trace.calls) {
    Renumber(call.inputs, place);
    Renumber(call.further_inputs, place);
    Renumber(call.outputs, place);
  }
  for (TraceOperator& op : trace.operators) {
    for (auto* list : {&op.reads, &op.creates, &op.outputs, &op.mutates}) {
      Renumber(*list, place);
    }
  }
  for (TraceTensor& tensor : trace.tensors) {
    tensor.storage = place[tensor.storage];
  }
  for (SavedTensor& saved : trace.saved) saved.storage = place[saved.storage];
  plain.trace = std::move(trace);
  return plain;
}

// Gives each operator with workspaces one.
Trace WithWorkspaces(PlainTrace plain) {
  Trace& trace = plain.trace;
  for (const auto& [op, bytes] : plain.workspaces) {
    if (bytes == 0) continue;
    const StorageId workspace = trace.storages.end_id();
    const Time end = EndOf(op);
    trace.operators[op].creates.push_back(workspace);
    trace.storages.push_back(
        {.bytes = bytes,
         .category = StorageCategory::kTemporary,
         .born = op,
         .freed = end,
         .scope_end = StartOf(op) < trace.forward_end ? end : kNever});
  }
  return std::move(trace);
}

bool AreAlike(const PlainTrace& plain_a, const PlainTrace& plain_b) {
  const Trace& a = plain_a.trace;
  const Trace& b = plain_b.trace;
  const auto has_same_storages = [](const TraceStorage& x, TraceStorage y) {
    y.bytes = x.bytes;
    return x == y;
  };
  const auto is_same_operator = [](const TraceOperator& x, TraceOperator y) {
    y.runtime_ms = x.runtime_ms;
    y.source = x.source;
    return x == y;
  };
  return a.forward_end == b.forward_end && a.backward_end == b.backward_end &&
         a.modules == b.modules && a.calls == b.calls &&
         a.operator_names == b.operator_names && a.tensors == b.tensors &&
         a.saved == b.saved &&
         std::ranges::equal(a.storages, b.storages, has_same_storages) &&
         std::ranges::equal(a.operators, b.operators, is_same_operator);
}

// A value at a length, of a polynomial through the values at others.
class Polynomial {
 public:
  Polynomial(const std::vector<int64_t>& lengths, int64_t length) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      long double weight = 1;
      for (size_t j = 0; j < lengths.size(); ++j) {
        if (j == i) continue;
        weight *= static_cast<long double>(length - lengths[j]) /
                  static_cast<long double>(lengths[i] - lengths[j]);
      }
      weights_.push_back(weight);
    }
  }

  template <typename Value>
  long double At(const Value& value) const {
    long double sum = 0;
    for (size_t i = 0; i < weights_.size(); ++i) {
      sum += weights_[i] * static_cast<long double>(value(i));
    }
    return std::max(sum, 0.0L);
  }

 private:
  std::vector<long double> weights_;
};

int64_t WorkspaceOf(const PlainTrace& plain, OperatorId op) {
  const auto bytes = plain.workspaces.find(op);
  return bytes == plain.workspaces.end() ? 0 : bytes->second;
}

// `nodes`: the two around the length, and a third one if there is any.
Trace Interpolated(const std::vector<PlainTrace>& nodes,
                   const std::vector<int64_t>& lengths, int64_t length) {
  const Polynomial bytes(lengths, length);
  const Polynomial line({lengths[0], lengths[1]}, length);
  PlainTrace result{.trace = nodes.front().trace};
  for (const StorageId s : result.trace.storages.ids()) {
    result.trace.storages[s].bytes = std::llround(
        bytes.At([&](size_t i) { return nodes[i].trace.storages[s].bytes; }));
  }
  for (const OperatorId op : result.trace.operators.ids()) {
    result.trace.operators[op].runtime_ms = static_cast<double>(line.At(
        [&](size_t i) { return nodes[i].trace.operators[op].runtime_ms; }));
    const int64_t workspace = std::llround(
        line.At([&](size_t i) { return WorkspaceOf(nodes[i], op); }));
    if (workspace > 0) result.workspaces[op] = workspace;
  }
  result.trace.peak_bytes.reset();
  return WithWorkspaces(std::move(result));
}

}  // namespace

bool AreAlike(const Trace& a, const Trace& b) {
  return AreAlike(WithoutWorkspaces(a), WithoutWorkspaces(b));
}

Trace TraceAt(const std::vector<TraceOfLength>& traces, int64_t length) {
  const auto high =
      std::ranges::lower_bound(traces, length, {}, &TraceOfLength::length);
  if (high != traces.end() && high->length == length) return high->trace;
  if (high == traces.begin() || high == traces.end()) {
    throw InputError(
        fmt::format("length {}: expected one from {} to {}, which are traced",
                    length, traces.front().length, traces.back().length));
  }
  const auto low = std::prev(high);
  // Where workspaces are alike as well they stay in their places.
  const bool is_plain =
      !AreAlike({.trace = low->trace}, {.trace = high->trace});
  const auto comparable = [&](const Trace& trace) {
    return is_plain ? WithoutWorkspaces(trace) : PlainTrace{.trace = trace};
  };
  std::vector<PlainTrace> nodes{comparable(low->trace),
                                comparable(high->trace)};
  std::vector<int64_t> lengths{low->length, high->length};
  if (is_plain && !AreAlike(nodes[0], nodes[1])) {
    throw InputError(fmt::format(
        "length {}: {} and {} run different operators, so nothing is known "
        "between them: expected a trace of this length",
        length, low->name, high->name));
  }
  std::vector<const TraceOfLength*> others;
  if (low != traces.begin()) others.push_back(&*std::prev(low));
  if (std::next(high) != traces.end()) others.push_back(&*std::next(high));
  std::ranges::sort(others, {}, [&](const TraceOfLength* other) {
    return std::abs(other->length - length);
  });
  for (const TraceOfLength* other : others) {
    PlainTrace third = comparable(other->trace);
    if (!AreAlike(nodes[0], third)) continue;
    nodes.push_back(std::move(third));
    lengths.push_back(other->length);
    break;
  }
  return Interpolated(nodes, lengths, length);
}

}  // namespace acplan::graph
