#pragma once

#include <cstdint>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"

namespace acplan::graph {

// Kept buffers that wait in the host's memory between the passes.
//
// - Moves change neither the steps of a run nor their order.
// - The copy to the host is queued when the node that makes the buffer has ended; the
//   device keeps its memory until JointMove::release, where the step waits for that copy.
// - From JointMove::fetch on the device has new memory, into which the copy back is
//   queued. The first step of backward that reads the buffer waits for it.
// - The host has the buffer from its making until that read.

// The steps of a run that use a kept buffer.
struct KeptLife {
  int32_t buffer = 0;
  int32_t maker_step = 0;
  int32_t last_forward = 0;    // the last step of forward that uses it
  int32_t first_backward = 0;  // the steps of backward that read it
  int32_t last_backward = 0;
};

// Returns the place of the first step of backward; that of the end if there is none.
int32_t FirstOfBackward(const JointRun& run);

// Returns the kept buffers that may move, in the order in which they are made: those with
// bytes that steps of backward read and that backward does not return.
std::vector<KeptLife> MovableLives(const JointGraph& graph,
                                   const JointRun& run);

// Returns the same run with these moves in place of its own, its bytes and its peak.
// Throws InputError that names the buffer if a buffer may not move, moves twice, or does so
// at other steps than JointMove allows.
JointRun WithMoves(const JointGraph& graph, JointRun run,
                   std::vector<JointMove> moves);

// Returns the bytes of the buffers that move: the most that the host has at a time, since
// it has all of them between the passes.
int64_t MovedBytes(const JointGraph& graph, const JointRun& run);

}  // namespace acplan::graph
