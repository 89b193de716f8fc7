#include "graph/dataflow/trace_dataflow.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace acplan::graph {
namespace {

class Builder {
 public:
  Builder(const Trace& trace, CallId call)
      : trace_(trace), call_(trace.calls[call]) {
    FindSaved(call);
    graph_.model = trace.model;
  }

  DataflowGraph Run() {
    AddPlaceholders();
    AddOperators(call_.start, call_.end, DataflowStage::kForward);
    DataflowNode loss = {.name = "returned", .stage = DataflowStage::kLoss};
    for (const StorageId s : call_.outputs) AddInput(s, loss);
    Add(std::move(loss));
    if (call_.backward_start != kNever) {
      AddOperators(std::max(call_.backward_start, trace_.forward_end),
                   BackwardEnd(), DataflowStage::kBackward);
    }
    return std::move(graph_);
  }

 private:
  Time BackwardEnd() const {
    return std::min(call_.backward_end, trace_.backward_end);
  }

  void FindSaved(CallId call) {
    for (const SavedTensor& saved : trace_.saved) {
      CallId ancestor = saved.call;
      while (ancestor > call) ancestor = trace_.calls[ancestor].parent;
      if (ancestor == call) saved_.insert(saved.storage);
    }
  }

  void AddPlaceholders() {
    std::set<StorageId> used_storages;
    const auto collect = [&](Time begin, Time end) {
      for (const OperatorId k : OperatorsIn(begin, end)) {
        const TraceOperator& trace_operator = trace_.operators[k];
        for (const StorageId s : trace_operator.reads) used_storages.insert(s);
        for (const StorageId s : trace_operator.mutates)
          used_storages.insert(s);
      }
    };
    collect(call_.start, call_.end);
    if (call_.backward_start != kNever) {
      collect(std::max(call_.backward_start, trace_.forward_end),
              BackwardEnd());
    }
    for (const StorageId s : used_storages) {
      const TraceStorage& storage = trace_.storages[s];
      if (!storage.IsOlderThan(call_.start)) continue;
      node_of_[s] = Add({.name = fmt::format("storage {}", s),
                         .stage = DataflowStage::kPlaceholder,
                         .saved = saved_.contains(s),
                         .bytes = storage.bytes});
    }
  }

  void AddOperators(Time begin, Time end, DataflowStage stage) {
    for (const OperatorId k : OperatorsIn(begin, end)) {
      const TraceOperator& trace_operator = trace_.operators[k];
      DataflowNode node = {
          .name = fmt::format("{} {}", k,
                              trace_.operator_names[trace_operator.name]),
          .stage = stage};
      for (const StorageId s : trace_operator.reads) AddInput(s, node);
      for (const StorageId s : trace_operator.creates) {
        node.bytes += trace_.storages[s].bytes;
        node.saved |= stage == DataflowStage::kForward && saved_.contains(s);
      }
      const int32_t index = Add(std::move(node));
      for (const StorageId s : trace_operator.creates) node_of_[s] = index;
      for (const StorageId s : trace_operator.mutates) node_of_[s] = index;
    }
  }

  void AddInput(StorageId storage, DataflowNode& node) const {
    const auto maker = node_of_.find(storage);
    if (maker == node_of_.end()) return;
    if (std::ranges::find(node.inputs, maker->second) == node.inputs.end()) {
      node.inputs.push_back(maker->second);
    }
  }

  int32_t Add(DataflowNode node) {
    graph_.nodes.push_back(std::move(node));
    return static_cast<int32_t>(graph_.nodes.size()) - 1;
  }

  const Trace& trace_;
  const TraceCall& call_;
  std::set<StorageId> saved_;
  std::map<StorageId, int32_t> node_of_;  // each storage's last node
  DataflowGraph graph_;
};

}  // namespace

DataflowGraph DataflowOf(const Trace& trace, CallId call) {
  return Builder(trace, call).Run();
}

}  // namespace acplan::graph
