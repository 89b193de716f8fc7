#include "costmodel/hardware/network.h"

#include <algorithm>

namespace acplan::costmodel {

double Network::RingTime(NetworkOperation operation, double bytes,
                         double participants) const {
  NetworkVolume volume = Volume(operation);
  double steps = 1;
  switch (operation) {
    case NetworkOperation::kPointToPoint:
      break;
    case NetworkOperation::kReduceScatter:
    case NetworkOperation::kAllGather:
      volume.scalar = std::min(volume.scalar,
                               Volume(NetworkOperation::kAllReduce).scalar / 2);
      steps = participants - 1;
      break;
    case NetworkOperation::kAllReduce:
      steps = 2 * (participants - 1);
      break;
  }
  return steps * latency + bytes * volume.scalar *
                               (1 + volume.offset / participants) /
                               (bandwidth * efficiency);
}

}  // namespace acplan::costmodel
