#include "tests/costmodel/example_strategy.h"

#include "tests/costmodel/golden_data.h"

namespace acplan::costmodel {

const Model& ExampleModel() { return GoldenModel("models/megatron-22B.json"); }

System RoomySystem() {
  System system = GoldenSystem("systems/a100_80g.json");
  system.mem1.capacity = kRoomyCapacity;
  system.mem2.capacity = kRoomyCapacity;
  return system;
}

Execution ExampleStrategy() {
  return {.num_procs = 64,
          .tensor_par = 8,
          .pipeline_par = 2,
          .data_par = 4,
          .tensor_par_net = 0,
          .pipeline_par_net = 1,
          .data_par_net = 1,
          .batch_size = 64,
          .microbatch_size = 2,
          .datatype = Datatype::kFloat16,
          .activation_recompute = Recompute::kFull,
          .tensor_par_comm_type = TensorCommType::kScattered,
          .training = true};
}

}  // namespace acplan::costmodel
