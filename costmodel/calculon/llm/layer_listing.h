#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "costmodel/calculon/llm/evaluation.h"

namespace acplan::costmodel {

inline constexpr int kLayerStatistics = 47;

// The names of the statistics, in order: docs/file_formats.md, "Statistics".
extern const std::array<std::string_view, kLayerStatistics>
    kLayerStatisticNames;

struct LayerListing {
  std::string_view name;
  // Indexed like kLayerStatisticNames.
  std::array<double, kLayerStatistics> values;
};

// Returns the layers of a block, in order, of an execution that fits.
std::vector<LayerListing> ListLayers(const Model& model, const System& system,
                                     const Execution& execution);

}  // namespace acplan::costmodel
