#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/training/layer/layer_operations.h"

namespace acplan::costmodel {

constexpr double kWidth = 2;  // bytes of bf16 and fp16

// Collects the operations of a layer (layer_operations.cc, attention_operations.cc).
class LayerBuilder {
 public:
  LayerBuilder(const ModelShape& shape, const TrainingStrategy& strategy)
      : shape_(shape), strategy_(strategy) {
    rows_ = static_cast<double>(strategy.microbatch) *
            static_cast<double>(strategy.sequence) /
            static_cast<double>(strategy.context);
    tensor_ = static_cast<double>(strategy.tensor);
    split_rows_ = strategy.sequence_parallel ? rows_ / tensor_ : rows_;
    hidden_ = static_cast<double>(shape.hidden);
  }

  void AddAttention(bool is_windowed);
  void AddCrossAttention();
  void AddLinearMixer();
  void AddFeedforward(LayerPart part, LayerPart activation_part, double width);
  void AddExperts();
  void AddNorm();
  void AddResidual();
  void AddEmbedding();
  void AddLogits();

  // Makes the operations that `add` adds those of a share of the layers.
  template <typename Add>
  void AddShare(double share, Add add) {
    if (share == 0) return;
    const size_t first = operations_.size();
    add();
    for (size_t i = first; i < operations_.size(); ++i) {
      operations_[i].share *= share;
      operations_[i].saved_bytes *= share;
      operations_[i].made_bytes *= share;
    }
  }

  std::vector<LayerOperation> Take() { return std::move(operations_); }

 private:
  // Adds the communication before products that tensor parallelism splits by columns, which
  // read `rows` vectors.
  void AddGather(LayerPart part, double rows);
  void AddGather(LayerPart part) { AddGather(part, rows_); }
  // Adds the communication after products that tensor parallelism splits by rows.
  void AddScatter(LayerPart part);
  bool HasBias(std::string_view name, LayerPart part) const;
  void AddProduct(std::string_view name, LayerPart part, MatrixProduct product,
                  double saved_bytes);
  LayerOperation WithAdapter(LayerOperation operation) const;
  void AddElementwise(std::string_view name, LayerPart part, double elements,
                      double saved_bytes);
  void AddProjections();
  void AddLatentProjections();
  void AddIndexer();
  void AddGate();
  void AddScan();
  void AddCoreAttention(bool is_windowed);
  void AddUnfusedAttention(double keys);
  double CopiesPermuted() const;
  void AddExpertSharing(double bytes);

  const ModelShape& shape_;
  const TrainingStrategy& strategy_;
  double rows_ = 0;
  double split_rows_ = 0;
  double tensor_ = 1;
  double hidden_ = 0;
  std::vector<LayerOperation> operations_;
};

}  // namespace acplan::costmodel
