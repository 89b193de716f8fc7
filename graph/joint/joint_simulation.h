#pragma once

#include <cstdint>
#include <vector>

#include "graph/joint/joint_graph.h"

namespace acplan::graph {

// What the two passes of a joint graph do and hold in memory, where some buffers
// are kept from forward to backward and everything else that backward needs is
// made again.
//
// - Forward runs its nodes in order; one of stage either only where something that it
//   makes is kept, or read by such a node that runs.
// - Backward runs its nodes in order. Before each, what it needs that is not there
//   (not kept, no input, nothing that forward returns, not made already) is made,
//   by nodes that then run again, in the order of the graph, each once in the whole
//   pass. At last the same for what backward returns.
// - A buffer is live from the node that makes it to its last read in the same pass, and
//   at that node in any case; if it is kept, to its last read in backward; if a pass
//   returns it, to the end. Inputs are live during the whole step, those that come with
//   backward from its begin to their last read.
// - A node that runs again makes all that it makes: what is kept or not needed is there a
//   second time, while it runs.
// - What is kept and not needed by backward counts as not kept.
// - Of tied nodes, what backward needs is kept of all or of none.
struct JointRun {
  struct Step {
    int32_t node = 0;
    bool is_backward = false;  // it runs in the backward pass
    // It ran in forward already, or could have (stage either).
    bool is_again = false;
    bool operator==(const Step&) const = default;
  };
  std::vector<char> kept = {};           // a buffer: what counts as kept
  std::vector<Step> steps = {};          // in order
  std::vector<int64_t> live_bytes = {};  // while each of them runs
  int64_t peak_bytes = 0;                // held_bytes if nothing runs
  int32_t peak_step = -1;                // the first with the peak
  int64_t kept_bytes = 0;
  double recompute_ms = 0;  // of nodes that run in both passes

  bool operator==(const JointRun&) const = default;
};

// Simulates graphs that ParseJointGraph could return. Refers to the graph.
class JointSimulator {
 public:
  explicit JointSimulator(const JointGraph& graph);

  // `kept`: a buffer. Throws InputError, naming the node or buffer, where
  // - a buffer is kept that may not be or that no node of stage forward or either makes;
  // - a node would have to run again that may not;
  // - of what tied nodes make, one buffer is kept and one is not that is needed, too.
  JointRun Run(const std::vector<char>& kept) const;

  // All that may be kept and that backward nodes read themselves, and what operators read
  // whose results may not be kept: what runs again then has to.
  std::vector<char> AllKept() const;

  // The node that makes a buffer; -1: it is an input.
  int32_t MakerOf(int32_t buffer) const { return maker_[buffer]; }
  bool IsForwardOutput(int32_t buffer) const {
    return is_returned_[buffer] != 0;
  }

 private:
  // Returns whether backward has the buffer without keeping or making it.
  bool IsThere(int32_t buffer) const;
  // Keeps of tied nodes what is kept of one.
  void KeepAlike(std::vector<char>& kept) const;
  void RequireAlike(const JointRun& run, const std::vector<char>& needed) const;

  const JointGraph& graph_;
  std::vector<int32_t> maker_;
  std::vector<char> is_returned_;  // by forward
};

}  // namespace acplan::graph
