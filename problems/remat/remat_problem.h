#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"

namespace acplan::problems {

// What the compiled forward pass keeps for the compiled backward pass, and what
// backward makes again (rematerialises): a torch.compile partition.
//
// Data
//   A joint graph (graph/joint/joint_graph.h). Operators o = 0, 1, ... are its nodes of
//   stage forward and either, in order; t_o ms. Values v are what operators make and the
//   forward pass does not return: b_v bytes, made by o(v). Backward nodes j = 0, 1, ...
//   read values D_j; after the last one stands the end of backward, which reads
//   what is returned.
// Variables
//   k_v in {0, 1}   v is kept
// Follow from them: n_v, backward needs v; r_o, operator o runs again; f_o, the backward
//   node before which it does; u_v, when backward reads v for the last time:
//   n_v = 1 for v in D_j, and where an operator that runs again reads v;
//   r_o = 1 where o makes a v with n_v = 1, k_v = 0;
//   e_o, o runs in forward: it is of stage forward, makes a v with n_v = k_v = 1, or an
//   operator of stage either with e = 1 reads what it makes;
//   f_o = the first j before which such a v is needed;
//   moments of backward are ordered: before j the operators o with f_o = j, by o, then j.
// Operators that are tied are decided as one: k is the same of what they make, in order.
// Model
//   minimise   sum over o of t_o r_o e_o
//   subject to bytes(m) <= B   at every moment m that there is
//              sum of b_v k_v n_v <= K
//   where bytes(m) are those of graph/joint/joint_simulation.h: what is live whatever is
//   kept (base), and
//   - in forward at o: values v with k_v n_v = 1 that are made before and not live anyway;
//   - in backward at m: values with k_v = 1 and m <= u_v, those with k_v = 0 that were
//     made again by then and m <= u_v, and at an operator that runs again all else that
//     it makes.

struct RematOperator {
  int32_t node = 0;
  bool is_either = false;
  double ms = 0;
  bool may_run_again = true;
  std::vector<int32_t> makes = {};  // values
  std::vector<int32_t> reads = {};  // values
  int64_t scratch_bytes = 0;
  int64_t returned_bytes = 0;  // of what it makes that forward returns
};

struct RematValue {
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  int32_t buffer = 0;
  int64_t bytes = 0;
  bool may_keep = true;
  int32_t maker = 0;  // operator
  // Among all that its maker's node makes, also what forward returns: tied values have
  // the same.
  int32_t place = 0;
  // The backward nodes that read it themselves; kNever and -1: none does.
  int32_t first_read = kNever;
  int32_t last_read = -1;
  // The last operator of forward during which it is live if it is not kept; -1: its
  // maker does not run in forward then.
  int32_t live_until = -1;

  // What stands for it in what is chosen of its maker.
  uint64_t Bit() const { return uint64_t{1} << place; }
};

// B and K: what the step may need at its peak, and what may be kept from forward to
// backward.
struct RematBudget {
  int64_t peak_bytes = 0;
  int64_t kept_bytes = std::numeric_limits<int64_t>::max();
};

// A moment of the step. One of forward at the operator after the last stands between the
// passes: only what is kept counts there, against its own budget.
struct RematMoment {
  enum class Kind : uint8_t { kForward, kBackward, kAgain };
  Kind kind = Kind::kForward;
  int32_t op = 0;        // forward and again
  int32_t backward = 0;  // backward: which; again: before which

  bool operator==(const RematMoment&) const = default;
};

struct RematProblem {
  const graph::JointGraph* graph = nullptr;
  std::vector<RematOperator> operators = {};
  std::vector<RematValue> values = {};
  // Operators that are decided as one, in an order in which whoever may need a value, as it
  // may run again or early, comes before its maker; without ties, where all may, each
  // alone, from the last to the first.
  std::vector<std::vector<int32_t>> groups = {};
  std::vector<int32_t> backward_nodes = {};  // nodes
  std::vector<int32_t> operator_of = {};     // a node; -1: backward
  std::vector<int32_t> place_of = {};        // a node: in backward_nodes; -1
  std::vector<int32_t> value_of = {};        // a buffer; -1: no value
  // An operator; of one of stage either no more than is live when it does not run.
  std::vector<int64_t> forward_base = {};
  std::vector<int64_t> backward_base = {};  // a backward node
  // Before a backward node or, last, the end, while operators run again.
  std::vector<int64_t> again_base = {};

  int64_t BaseOf(const RematMoment& moment) const;
  // What decisions may come to there.
  int64_t RoomAt(const RematMoment& moment, const RematBudget& budget) const;
  // Between the passes.
  RematMoment Between() const {
    return {.op = static_cast<int32_t>(operators.size())};
  }
  // All operators once.
  double AllMs() const;
};

// Refers to the graph. Throws InputError, naming a node, where what tied nodes make is
// read, by whatever way, by nodes that are tied to them.
RematProblem BuildRematProblem(const graph::JointGraph& graph);

// The moment of a step of a simulation.
RematMoment MomentOf(const RematProblem& problem, const graph::JointRun& run,
                     int32_t step);

}  // namespace acplan::problems
