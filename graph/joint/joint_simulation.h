#pragma once

#include <cstdint>
#include <vector>

#include "graph/joint/joint_graph.h"

namespace acplan::graph {

// The steps of the two passes of a joint graph and the memory that they hold, if some
// buffers are kept from forward to backward and all others that backward needs are
// recomputed.
//
// - Forward runs its nodes in order. A node of stage either runs there only if something
//   that it makes is kept, or is read by another node of stage either that runs.
// - Backward runs its nodes in order. Before each of them, the buffers that it needs and
//   that are missing (not kept, no inputs, no results of forward, not made already) are
//   made by nodes that then run again, in the order of the graph, each at most once in the
//   whole pass. At the end, the same holds for the buffers that backward returns.
// - A buffer is live from the node that makes it to its last read in the same pass, and at
//   that node in any case; if it is kept, to its last read in backward; if a pass returns
//   it, to the end. Inputs are live during the whole step, those that arrive with the
//   backward pass from its beginning to their last read.
// - A node that runs again makes all of its buffers: those that are kept or not needed
//   exist a second time while it runs.
// - A buffer that is kept and that backward does not need counts as not kept.
// - Among tied nodes, the buffers that backward needs are kept alike.
// - A kept buffer that moves waits in the host's memory and is in the device's
//   only outside of [release, fetch) (joint_moves.h).

// A kept buffer that moves. Steps are places in JointRun::steps, which do not
// depend on what moves.
struct JointMove {
  int32_t buffer = 0;
  // The device's memory is let go before this step. It comes after the last
  // step of forward that uses the buffer, or is the first step of backward.
  int32_t release = 0;
  // There is new memory from this step of backward on, at the latest from the
  // first one that reads the buffer.
  int32_t fetch = 0;

  bool operator==(const JointMove&) const = default;
};

struct JointRun {
  struct Step {
    int32_t node = 0;
    bool is_backward = false;  // the node runs in the backward pass
    // The node ran in forward already, or could have run there (stage either).
    bool is_again = false;
    bool operator==(const Step&) const = default;
  };
  std::vector<char> is_kept = {};        // the buffers that count as kept
  std::vector<Step> steps = {};          // in order
  std::vector<int64_t> live_bytes = {};  // while each step runs
  int64_t peak_bytes = 0;                // held_bytes if nothing runs
  int32_t peak_step = -1;                // the first step with the peak
  int64_t kept_bytes = 0;
  double recompute_ms = 0;            // of nodes that run in both passes
  std::vector<JointMove> moves = {};  // by buffer

  bool operator==(const JointRun&) const = default;
};

// A simulator for graphs that ParseJointGraph could return. It refers to the graph.
class JointSimulator {
 public:
  explicit JointSimulator(const JointGraph& graph);

  // Simulates the step. `is_kept`, indexed by buffer, has the buffers that are kept. Throws
  // InputError that names the node or buffer if
  // - a buffer is kept that may not be kept, or that no node of stage forward or either
  //   makes;
  // - a node would have to run again that may not run again;
  // - among the buffers of tied nodes that backward needs, one is kept and its counterpart
  //   is not.
  JointRun Run(const std::vector<char>& is_kept) const;

  // Returns all buffers that may be kept and that backward nodes read themselves, and the
  // inputs of nodes that then have to run again because their results may not be kept.
  std::vector<char> AllKept() const;

  // Returns the node that makes a buffer, or -1 if it is an input.
  int32_t MakerOf(int32_t buffer) const { return maker_[buffer]; }
  bool IsForwardOutput(int32_t buffer) const {
    return is_returned_[buffer] != 0;
  }

 private:
  // Returns whether backward has the buffer even if it is neither kept nor recomputed.
  bool IsThere(int32_t buffer) const;
  // Keeps, for each buffer that is kept of a tied node, its counterparts of the other
  // nodes.
  void KeepAlike(std::vector<char>& is_kept) const;
  void RequireAlike(const JointRun& run,
                    const std::vector<char>& is_needed) const;

  const JointGraph& graph_;
  std::vector<int32_t> maker_;
  // Indexed by buffer: whether forward returns it.
  std::vector<char> is_returned_;
};

}  // namespace acplan::graph
