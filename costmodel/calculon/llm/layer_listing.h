#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "costmodel/calculon/llm/evaluation.h"

namespace acplan::costmodel {

inline constexpr int kLayerStatistics = 47;

// Their names, in order: docs/file_formats.md, "Statistics".
extern const std::array<std::string_view, kLayerStatistics>
    kLayerStatisticNames;

struct LayerListing {
  std::string_view name;
  std::array<double, kLayerStatistics> values;  // by kLayerStatisticNames
};

// The layers of a block of an execution that fits, in order.
std::vector<LayerListing> ListLayers(const Model& model, const System& system,
                                     const Execution& execution);

}  // namespace acplan::costmodel
