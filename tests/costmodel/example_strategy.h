#pragma once

#include "costmodel/application/model.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"

namespace acplan::costmodel {

inline constexpr double kRoomyCapacity = 1e13;

// A model, a system on which all of its strategies fit, and one of them: all
// three degrees above 1, all activations recomputed.
const Model& ExampleModel();
System RoomySystem();
Execution ExampleStrategy();

}  // namespace acplan::costmodel
