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
  Builder(const Trace& trace, int32_t call)
      : trace_(trace), call_(trace.calls[call]) {
    FindSaved(call);
    graph_.model = trace.model;
  }

  DataflowGraph Run() {
    AddPlaceholders();
    AddOperators(call_.start, call_.end, DataflowStage::kForward);
    DataflowNode loss = {.name = "returned", .stage = DataflowStage::kLoss};
    for (const int32_t s : call_.outputs) AddInput(s, loss);
    Add(std::move(loss));
    if (call_.backward_start != kNever) {
      AddOperators(std::max(call_.backward_start, trace_.forward_end),
                   BackwardEnd(), DataflowStage::kBackward);
    }
    return std::move(graph_);
  }

 private:
  int32_t BackwardEnd() const {
    return std::min(call_.backward_end, trace_.backward_end);
  }

  void FindSaved(int32_t call) {
    for (const SavedTensor& saved : trace_.saved) {
      int32_t ancestor = saved.call;
      while (ancestor > call) ancestor = trace_.calls[ancestor].parent;
      if (ancestor == call) saved_.insert(saved.storage);
    }
  }

  void AddPlaceholders() {
    std::set<int32_t> used_storages;
    const auto collect = [&](int32_t begin, int32_t end) {
      for (int32_t op = begin; op < end; ++op) {
        const TraceOperator& trace_operator = trace_.operators[op];
        for (const int32_t s : trace_operator.reads) used_storages.insert(s);
        for (const int32_t s : trace_operator.mutates) used_storages.insert(s);
      }
    };
    collect(call_.start, call_.end);
    if (call_.backward_start != kNever) {
      collect(std::max(call_.backward_start, trace_.forward_end),
              BackwardEnd());
    }
    for (const int32_t s : used_storages) {
      const TraceStorage& storage = trace_.storages[s];
      if (storage.born >= call_.start) continue;
      node_of_[s] = Add({.name = fmt::format("storage {}", s),
                         .stage = DataflowStage::kPlaceholder,
                         .saved = saved_.contains(s),
                         .bytes = storage.bytes});
    }
  }

  void AddOperators(int32_t begin, int32_t end, DataflowStage stage) {
    for (int32_t op = begin; op < end; ++op) {
      const TraceOperator& trace_operator = trace_.operators[op];
      DataflowNode node = {
          .name = fmt::format("{} {}", op,
                              trace_.operator_names[trace_operator.name]),
          .stage = stage};
      for (const int32_t s : trace_operator.reads) AddInput(s, node);
      for (const int32_t s : trace_operator.creates) {
        node.bytes += trace_.storages[s].bytes;
        node.saved |= stage == DataflowStage::kForward && saved_.contains(s);
      }
      const int32_t index = Add(std::move(node));
      for (const int32_t s : trace_operator.creates) node_of_[s] = index;
      for (const int32_t s : trace_operator.mutates) node_of_[s] = index;
    }
  }

  void AddInput(int32_t storage, DataflowNode& node) const {
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
  std::set<int32_t> saved_;             // storages
  std::map<int32_t, int32_t> node_of_;  // each storage's last node
  DataflowGraph graph_;
};

}  // namespace

DataflowGraph DataflowOf(const Trace& trace, int32_t call) {
  return Builder(trace, call).Run();
}

}  // namespace acplan::graph
