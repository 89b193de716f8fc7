#include "graph/trace/link_time.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

// Follows the device through steps and events, which are in one order. When a
// copy ends is known when it is queued, since nothing overtakes it: in its
// direction it begins at the latest of now, of the end of the copy before it,
// and, back to the device, of its arrival at the host.

namespace acplan::graph {

IndexedVector<StepId, double> BeginsOfSteps(const Trace& trace,
                                            const Simulation& simulation) {
  IndexedVector<StepId, double> begins = {0};
  begins.reserve(simulation.steps.size() + 1);
  for (const Simulation::Step& step : simulation.steps) {
    begins.push_back(begins.back() + trace.operators[step.op].runtime_ms);
  }
  return begins;
}

LinkTime TimeOnLink(const IndexedVector<StepId, double>& begins_ms,
                    const OffloadUse& use,
                    const IndexedVector<MovedId, Flag>& moves,
                    const LinkRates& rates) {
  using enum OffloadEvent::Kind;
  LinkTime time;
  time.waits_ms.assign(use.events.size(), 0);
  double to_host_ms = 0;  // when the copies so far have ended
  double to_device_ms = 0;
  IndexedVector<MovedId, double> arrivals_ms(use.storages.size(), 0);
  for (size_t k = 0; k < use.events.size(); ++k) {
    const OffloadEvent& event = use.events[k];
    if (!moves[event.storage]) continue;
    const auto bytes = static_cast<double>(use.storages[event.storage].bytes);
    const double now_ms = begins_ms[event.step] + time.stall_ms;
    double& arrival = arrivals_ms[event.storage];
    switch (event.kind) {
      case kSend:
        to_host_ms = std::max(to_host_ms, now_ms) + bytes / rates.to_host * 1e3;
        arrival = to_host_ms;
        break;
      case kFetch:
        to_device_ms = std::max({to_device_ms, now_ms, arrival}) +
                       bytes / rates.to_device * 1e3;
        arrival = to_device_ms;
        break;
      case kRelease:
      case kUse:
        time.waits_ms[k] = std::max(0.0, arrival - now_ms);
        time.stall_ms += time.waits_ms[k];
        break;
      case kDrop:
        break;
    }
  }
  return time;
}

LinkTime TimeOnLink(const Trace& trace, const Simulation& simulation,
                    const LinkRates& rates) {
  const OffloadUse& use = simulation.offload;
  return TimeOnLink(BeginsOfSteps(trace, simulation), use,
                    IndexedVector<MovedId, Flag>(use.storages.size(), true),
                    rates);
}

}  // namespace acplan::graph
