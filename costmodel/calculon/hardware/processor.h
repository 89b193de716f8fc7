#pragma once

#include <array>
#include <optional>

#include "costmodel/calculon/hardware/datatype.h"
#include "costmodel/calculon/hardware/efficiency_curve.h"

namespace acplan::costmodel {

// An engine of a processor, matrix or vector: FLOP/s as a function of the operation's
// FLOPs, for each datatype that it supports.
struct Processor {
  std::array<std::optional<EfficiencyCurve>, kDatatypes> engines;

  bool Supports(Datatype datatype) const {
    return engines[static_cast<size_t>(datatype)].has_value();
  }
  // Returns the curve of a datatype. Requires that it is supported.
  const EfficiencyCurve& Engine(Datatype datatype) const {
    return *engines[static_cast<size_t>(datatype)];
  }
};

}  // namespace acplan::costmodel
