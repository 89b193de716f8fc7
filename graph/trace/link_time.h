#pragma once

#include <vector>

#include "graph/base/flag.h"
#include "graph/base/indexed_vector.h"
#include "graph/trace/offload.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The bytes that a link carries in a second, above 0, each way.
struct LinkRates {
  double to_host = 0;
  double to_device = 0;

  bool operator==(const LinkRates&) const = default;
};

// Returns the rates of a link that carries the same each way.
constexpr LinkRates BothWays(double bytes_per_second) {
  return {.to_host = bytes_per_second, .to_device = bytes_per_second};
}

// The time that a planned step waits for the link between device and host.
//
// The model
// - The link carries a number of bytes a second in each direction, both at once. In each
//   direction copies go one after the other, in the order of
//   OffloadUse::events, each at the full speed and without any latency.
// - The device computes the steps one after the other, each for the run-time of
//   its operator. Copies take nothing from it.
// - A copy begins as soon as the device gets to its event (kSend, kFetch), the
//   one before it has ended, and, back to the device, the bytes have arrived at
//   the host.
// - At kRelease and kUse the device waits until the storage's copy to the host
//   or back has ended: a stall.
// - The trace may have copies of its own, such as those of an optimizer's states
//   (acplan.offload, acplan.reload), which share the link. Where the trace waits for one
//   (acplan.wait) the device waits on until it has ended. A model whose parameters are
//   in the host's memory copies them and its gradients by PyTorch's operators, whose
//   run-times are those of the copies: the next operator waits on until one has ended.
// The step then takes the time of its operators, of what runs again, and of all
// stalls.
struct LinkTime {
  double stall_ms = 0;
  // How long each of OffloadUse::events waits. 0 for others than kRelease and kUse.
  std::vector<double> waits_ms;
};

// Returns whether operators of the trace copy to the host or back.
bool HasOwnCopies(const Trace& trace);

// Returns the use of a planned step with the trace's own copies behind its storages, as
// events in the order of all. Its other members are those without these copies.
OffloadUse WithOwnCopies(const Trace& trace, const Simulation& simulation);

// Returns the stalls on a link of these rates that a step has beyond those without the
// plan's copies, and the waits of the plan's events. Takes linear time.
LinkTime TimeOnLink(const Trace& trace, const Simulation& simulation,
                    const LinkRates& rates);

// Returns when each step begins without any stall, and in the end when the last has
// ended, for the function below.
IndexedVector<StepId, double> BeginsOfSteps(const Trace& trace,
                                            const Simulation& simulation);

// Returns the stalls of one of many choices of what moves: a storage that does not has
// no events. Takes time linear in the events.
LinkTime TimeOnLink(const IndexedVector<StepId, double>& begins_ms,
                    const OffloadUse& use,
                    const IndexedVector<MovedId, Flag>& moves,
                    const LinkRates& rates);

}  // namespace acplan::graph
