// The operations of a layer as a graph.
//
// A layer is a chain: an operation reads what the one before it makes. Exceptions are
// defined by names (InputsOf): residuals read the stream beside the chain, experts and
// shared experts the same norm, the halves of latent attention each other's inputs.
//
// The bytes that an operation saves are those of tensors that it makes itself
// (`made_bytes`) and of tensors that it reads. The latter are the output of the nearest
// operations before it that make a new tensor. A gathered tensor is gathered again in any
// case (it is in the backward pass of LayerOperations), so gathering makes nothing that
// could be kept. If two operations each save a copy of the same output, they keep or drop
// it together.
#include "costmodel/training/layer/layer_graph.h"

#include <fmt/format.h>

#include <bit>
#include <map>
#include <stdexcept>
#include <utility>

namespace acplan::costmodel {
namespace {

constexpr int kMostOperations = 64;
constexpr int kMostTensors = 20;

OperationSet Bit(int operation) { return OperationSet{1} << operation; }

class GraphBuilder {
 public:
  explicit GraphBuilder(const std::vector<LayerOperation>& operations)
      : operations_(operations) {}

  LayerGraph Build();

 private:
  std::string UniqueName(std::string_view name);
  OperationSet Last(std::string_view name) const;
  OperationSet InputsOf(int index) const;
  OperationSet MakersOfRead(int index) const;
  void AddTensor(OperationSet makers, double bytes, bool is_output);
  void AddSaved(int index);

  const std::vector<LayerOperation>& operations_;
  std::map<std::string, int, std::less<>> name_counts_ = {};
  std::map<std::string, int, std::less<>> last_ = {};
  LayerGraph graph_ = {};
};

std::string GraphBuilder::UniqueName(std::string_view name) {
  const int times = ++name_counts_[std::string(name)];
  return times == 1 ? std::string(name) : fmt::format("{} {}", name, times);
}

// Returns the last operation of that name before the current one.
OperationSet GraphBuilder::Last(std::string_view name) const {
  const auto entry = last_.find(name);
  return entry == last_.end() ? 0 : Bit(entry->second);
}

OperationSet GraphBuilder::InputsOf(int index) const {
  const std::string_view name = operations_[index].name;
  const OperationSet before = index > 0 ? Bit(index - 1) : 0;
  if (index == 0) return 0;  // the layer's input
  if (name == "residual") {
    return before | Last("residual") | Last("combine");
  }
  const OperationSet normed =
      Last("gather") != 0 ? Last("gather") : Last("norm");
  if (name == "query down" || name == "key, value down") return normed;
  if (name == "latent norms") {
    return Last("query down") | Last("key, value down");
  }
  if (name == "query up") {
    return Last("query down") != 0 ? Last("latent norms") : normed;
  }
  if (name == "key, value up") return Last("latent norms");
  if (name == "rotation" && Last("query up") != 0) {
    return Last("query up") | Last("key, value up") | Last("key, value down");
  }
  if (name == "values") {
    const OperationSet rotated = Last("rotation");
    return before | (rotated != 0 ? rotated : Last("query, key, value"));
  }
  if (name == "gate") return before | Last("query, key, value");
  if (name == "dispatch") return Last("norm") | Last("top experts");
  if (name == "combine") return before | Last("top experts");
  // Shared experts come after the other experts, and read the same tensor.
  const bool is_after_experts = operations_[index - 1].name == "combine";
  if (is_after_experts && name != "residual") return Last("norm");
  return before;
}

// Returns the makers of the tensor that an operation reads and saves. Operations that only
// gather are skipped.
OperationSet GraphBuilder::MakersOfRead(int index) const {
  const std::string_view name = operations_[index].name;
  OperationSet makers = graph_.operations[index].inputs;
  if (name == "gate") return Last("query, key, value");
  if (name == "values") {
    const OperationSet rotated = Last("rotation");
    makers = rotated != 0 ? rotated : Last("query, key, value");
  }
  const OperationSet gathered = Last("gather");
  if ((makers & gathered) != 0) {
    makers = (makers & ~gathered) |
             graph_.operations[std::countr_zero(gathered)].inputs;
  }
  return makers;
}

void GraphBuilder::AddTensor(OperationSet makers, double bytes,
                             bool is_output) {
  if (bytes == 0) return;
  if (makers == 0) {
    graph_.input_bytes += bytes;
    return;
  }
  for (GraphTensor& tensor : graph_.tensors) {
    if (tensor.makers == makers && tensor.is_output == is_output) {
      tensor.bytes += bytes;
      return;
    }
  }
  graph_.tensors.push_back({makers, bytes, is_output});
}

void GraphBuilder::AddSaved(int index) {
  const LayerOperation& operation = operations_[index];
  AddTensor(MakersOfRead(index), operation.saved_bytes - operation.made_bytes,
            true);
  // A dropout's mask is separate from its output; in all other cases the bytes belong to
  // the output.
  AddTensor(Bit(index), operation.made_bytes, operation.name != "residual");
}

LayerGraph GraphBuilder::Build() {
  for (int i = 0; i < static_cast<int>(operations_.size()); ++i) {
    graph_.operations.push_back(
        {.name = UniqueName(operations_[i].name), .inputs = InputsOf(i)});
    AddSaved(i);
    last_[std::string(operations_[i].name)] = i;
  }
  if (graph_.operations.size() > kMostOperations ||
      graph_.tensors.size() > kMostTensors) {
    throw std::logic_error("a layer has more operations than a graph holds");
  }
  return std::move(graph_);
}

// Adds times and FLOPs of a share of the layers.
void AddCosts(LayerGraph& graph, const std::vector<LayerOperation>& operations,
              const TrainingJob& job, double share) {
  for (size_t i = 0; i < operations.size(); ++i) {
    const MatrixProduct& p = operations[i].product;
    GraphOperation& operation = graph.operations[i];
    operation.forward += ForwardTime(operations[i], job) * share;
    operation.flops += share * (2 * p.rows * p.columns * p.inner * p.groups +
                                operations[i].attention_flops);
  }
}

}  // namespace

double LayerGraph::WholeBytes() const {
  double sum = input_bytes;
  for (const GraphTensor& tensor : tensors) sum += tensor.bytes;
  return sum;
}

double LayerGraph::KeptBytes(TensorSet kept_tensors) const {
  double sum = input_bytes;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if ((kept_tensors >> i & 1) != 0) sum += tensors[i].bytes;
  }
  return sum;
}

LayerGraph GraphOfLayer(const TrainingJob& job, bool is_moe) {
  const ModelShape& shape = job.shape;
  const std::vector<LayerOperation> operations =
      LayerOperations(shape, job.strategy, {.is_moe = is_moe});
  LayerGraph graph = GraphBuilder(operations).Build();
  if (shape.sliding_window == 0) {
    AddCosts(graph, operations, job, 1);
    return graph;
  }
  const double full = shape.FullShare();
  AddCosts(graph, operations, job, full);
  AddCosts(graph,
           LayerOperations(shape, job.strategy,
                           {.is_moe = is_moe, .is_windowed = true}),
           job, 1 - full);
  return graph;
}

OperationSet RunsAgain(const LayerGraph& graph, TensorSet kept_tensors) {
  OperationSet runs = 0;
  OperationSet kept_outputs = 0;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const GraphTensor& tensor = graph.tensors[i];
    if ((kept_tensors >> i & 1) == 0) {
      runs |= tensor.makers;
    } else if (tensor.is_output) {
      kept_outputs |= tensor.makers;
    }
  }
  for (int i = static_cast<int>(graph.operations.size()) - 1; i >= 0; --i) {
    if ((runs >> i & 1) != 0)
      runs |= graph.operations[i].inputs & ~kept_outputs;
  }
  return runs;
}

std::string NameOfTensor(const LayerGraph& graph, const GraphTensor& tensor) {
  std::string name;
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    if ((tensor.makers >> i & 1) == 0) continue;
    name += (name.empty() ? "" : " + ") + graph.operations[i].name;
  }
  return tensor.is_output ? name : name + " mask";
}

}  // namespace acplan::costmodel
