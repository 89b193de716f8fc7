#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "costmodel/layers/layer_times.h"
#include "costmodel/llm/block_costs.h"

namespace acplan::costmodel {

// A block as the check of plans sees it (plan_check.h): what its layers read of each
// other, and what runs again where only some of that is kept. Derived from the
// layers alone, not from the list of operators that plans are made with.

// A layer makes its output, a mask beside it, or its gathered input.
enum class MadeKind : uint8_t { kOutput, kMask, kGathered };
using MadeValue = std::pair<int, MadeKind>;  // by the layer that makes it
inline constexpr MadeValue kBlockInputValue = {kBlockInput, MadeKind::kOutput};

// A value that a layer would have kept.
struct LayerReading {
  MadeValue value;
  double bytes = 0;
  bool is_for_backward = true;
};

// The layers of a block, and what they read of each other. Refers to both.
class LayerReader {
 public:
  LayerReader(std::span<const Layer> layers, const LayerHardware& hardware)
      : layers_(layers), hardware_(hardware) {}

  int size() const { return static_cast<int>(layers_.size()); }

  // Returns whether the layer gathers its input, hidden behind computing.
  bool Gathers(int layer) const;

  // Returns the value that a layer reads, before it gathers that.
  MadeValue Read(int layer, int which) const;

  std::vector<MadeValue> ReadToRun(int layer) const;
  std::vector<LayerReading> ReadToGoBack(int layer) const;

 private:
  std::span<const Layer> layers_;
  const LayerHardware& hardware_;
};

// A block that keeps some values: what they take, and what runs again. Refers to
// the reader.
class KeepingBlock {
 public:
  KeepingBlock(const LayerReader& reader, std::set<MadeValue> kept);

  double bytes() const { return bytes_; }

  // The block with its layers as those of an execution that recomputes them.
  Block Recomputed(Block block) const;

 private:
  bool Has(const MadeValue& value) const {
    return value == kBlockInputValue || kept_.contains(value);
  }
  void Make(const MadeValue& value);
  void MakeUnlessKept(const MadeValue& value) {
    if (!Has(value)) Make(value);
  }

  const LayerReader& reader_;
  std::set<MadeValue> kept_;
  std::vector<bool> computes_;  // a layer
  std::vector<bool> gathers_;
  double bytes_ = 0;
};

}  // namespace acplan::costmodel
