#pragma once

#include <string_view>

#include "graph/base/indexed_vector.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The time that a device takes for a step, by streams.
//
// The model
// - A stream is a queue: it runs its operators in the order of the step. Streams run at the
//   same time and do not slow each other down.
// - An operator starts when the one before it on its stream has ended, and all that it waits
//   for: of each, the latest run before it in the order of the step.
// - An operator that runs again does so on its stream, and waits for the same operators.
// - The step ends when all streams have ended.
//
// A worked step: an all-gather G of 5 ms runs on stream 1 beside a product P of 2 ms; Q, of 3
// ms, waits for G. The step takes 8 ms, of which 3 ms are exposed communication: the default
// stream waits from 2 to 5 ms. If P runs again before Q, the step still takes 8 ms:
//
//   ms         0 1 2 3 4 5 6 7         0 1 2 3 4 5 6 7
//   stream 0   P P . . . Q Q Q         P P P'P'. Q Q Q
//   stream 1   G G G G G               G G G G G

struct StreamTimes {
  double step_ms = 0;
  double communication_ms = 0;  // of all collectives
  // The time in which the default stream does not compute: it communicates itself, or waits
  // for other streams.
  double exposed_ms = 0;
};

// Returns whether an operator of this name is a collective.
bool IsCollective(std::string_view name);

// Returns whether the step runs on more than one stream.
bool HasStreams(const Trace& trace);

// Puts all operators on one stream.
void MergeStreams(Trace& trace);

// Returns when each step of a simulation starts, in milliseconds.
IndexedVector<StepId, double> StartsOnStreams(
    const Trace& trace, const IndexedVector<StepId, Simulation::Step>& steps);

// Returns the times of the steps of a simulation.
StreamTimes TimeOnStreams(const Trace& trace,
                          const IndexedVector<StepId, Simulation::Step>& steps);

}  // namespace acplan::graph
