#include "costmodel/calculon/llm/peers.h"

namespace acplan::costmodel {

Peers PeersOf(const Execution& execution, int64_t processor) {
  const int64_t tensor_par = execution.tensor_par;
  const int64_t stages = execution.pipeline_par;
  const int64_t in_group = processor % tensor_par;
  const int64_t stage = processor / tensor_par % stages;
  const int64_t replica = processor / (tensor_par * stages);
  const auto id = [&](int64_t d, int64_t p, int64_t t) {
    return (d * stages + p) * tensor_par + t;
  };
  Peers peers;
  if (tensor_par > 1) {
    for (int64_t t = 0; t < tensor_par; ++t) {
      peers.tensor.push_back(id(replica, stage, t));
    }
  }
  if (stages > 1) {
    peers.pipeline = id(replica, (stage + 1) % stages, in_group);
  }
  if (execution.data_par > 1) {
    for (int64_t d = 0; d < execution.data_par; ++d) {
      peers.data.push_back(id(d, stage, in_group));
    }
  }
  return peers;
}

}  // namespace acplan::costmodel
