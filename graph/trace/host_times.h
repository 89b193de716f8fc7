#pragma once

#include <algorithm>
#include <optional>
#include <vector>

namespace acplan::graph {

struct CheckpointedModule;
struct Simulation;
struct Trace;

// The time that the host takes for a step: Python, PyTorch's dispatcher, autograd and the
// launches of kernels.
//
// The model
// - The host runs the operators one after the other, and does not wait for the device. Each
//   operator takes it a time that depends on the pass, and on whether it is a view, which
//   launches nothing. So does each call of a module.
// - A unit takes it a time more for each of its operators, in its forward pass and in its
//   recomputation together, whatever is decided for the operator: Python is called before
//   and after it. In a quiet unit Python is not called, and the time is that of running
//   again. A call of a unit takes it a time for each call of a module in it, itself
//   included, whose state is kept and restored. An operator that runs again is also
//   launched again.
// - A unit is quiet if it recomputes everything, is a module and no run of modules, and
//   writes only to memory that its call makes.
// - Device and host are two queues, and the device may have streams within
//   (stream_times.h). The device never runs ahead of the host, and the host
//   queues work for the device without waiting. In a loop of equal steps, a step therefore
//   takes the longer of both times.

// Microseconds for an operator that computes, and for a view.
struct HostPair {
  double op_us = 0;
  double view_us = 0;

  double Us(bool is_view) const { return is_view ? view_us : op_us; }
  bool operator==(const HostPair&) const = default;
};

struct HostTimes {
  HostPair forward;
  HostPair backward;
  double update_us = 0;  // an operator of the optimizer step
  double call_us = 0;    // a call of a module in the forward pass
  // Beyond these, in a unit's forward pass and in its recomputation together.
  HostPair unit;         // an operator of a unit that is not quiet
  HostPair quiet_unit;   // an operator of a quiet unit
  double module_us = 0;  // a call of a module in the unit
  double launch_us = 0;  // an operator that runs again and is no view

  bool operator==(const HostTimes&) const = default;
};

// The two queues of a step.
struct StepMs {
  // The sum of all operators and of what runs again; with streams, until all have ended.
  double device = 0;
  double host = 0;

  // Returns the time of the step.
  double Longer() const { return std::max(device, host); }
};

// Returns the times of a simulated step with these units; nothing if the trace does not have
// the host's times.
std::optional<StepMs> TimesOfStep(
    const Trace& trace, const std::vector<CheckpointedModule>& modules,
    const Simulation& simulation);

}  // namespace acplan::graph
