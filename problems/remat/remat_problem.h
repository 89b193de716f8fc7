#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"

namespace acplan::problems {

// The problem of what the compiled forward pass keeps for the compiled backward
// pass, and what backward makes again (rematerialises): a torch.compile
// partition.
//
// Data
//   A joint graph (graph/joint/joint_graph.h). Operators o = 0, 1, ... are its
//   nodes of stage forward and either, in order; t_o ms. Values v are the results
//   of operators that the forward pass does not return: b_v bytes, made by o(v).
//   Backward nodes j = 0, 1, ... read values D_j; after the last one stands the
//   end of backward, which reads the values that it returns.
// Variables
//   k_v in {0, 1}   v is kept
// These follow from them: n_v, backward needs v; r_o, operator o runs again; f_o,
//   the backward node before which it does; u_v, the time when backward reads v
//   last:
//   n_v = 1 for v in D_j, and if an operator that runs again reads v;
//   r_o = 1 if o makes a v with n_v = 1, k_v = 0;
//   e_o, o runs in forward: it is of stage forward, makes a v with n_v = k_v = 1,
//   or an operator of stage either with e = 1 reads one of its values;
//   f_o = the first j before which such a v is needed;
//   moments of backward are ordered: before j the operators o with f_o = j, by o,
//   then j.
// Tied operators are decided as one: k is the same for their values, in order.
// Model
//   minimise   sum over o of t_o r_o e_o
//   subject to bytes(m) <= B   at every moment m that there is
//              sum of b_v k_v n_v <= K
//   where bytes(m) are those of graph/joint/joint_simulation.h: the bytes that are
//   live for every choice of k (base), and
//   - in forward at o: values v with k_v n_v = 1 that are made before and not live
//     anyway;
//   - in backward at m: values with k_v = 1 and m <= u_v, those with k_v = 0 that
//     were made again by then and m <= u_v, and at an operator that runs again all
//     its other values.

struct RematOperator {
  int32_t node = 0;
  bool is_either = false;
  double ms = 0;
  bool may_run_again = true;
  std::vector<int32_t> makes = {};  // values
  std::vector<int32_t> reads = {};  // values
  int64_t scratch_bytes = 0;
  int64_t returned_bytes = 0;  // of its results that forward returns
};

struct RematValue {
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();

  int32_t buffer = 0;
  int64_t bytes = 0;
  bool may_keep = true;
  int32_t maker = 0;  // operator
  // The index among all results of its maker's node, including those that
  // forward returns: tied values have the same.
  int32_t place = 0;
  // The backward nodes that read it directly; kNever and -1: none does.
  int32_t first_read = kNever;
  int32_t last_read = -1;
  // The last operator of forward during which it is live if it is not kept; -1:
  // then its maker does not run in forward.
  int32_t live_until = -1;

  // Returns the bit of the value in a choice among its maker's results.
  uint64_t Bit() const { return uint64_t{1} << place; }
};

// B and K: the limits on the step's peak and on the bytes kept from forward to
// backward.
struct RematBudget {
  int64_t peak_bytes = 0;
  int64_t kept_bytes = std::numeric_limits<int64_t>::max();
};

// A moment of the step. The moment of forward after the last operator is the
// one between the passes: only kept values count there, against their own
// budget.
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
  // Operators that are decided as one, in an order in which every operator that
  // may need a value, because it may run again or early, comes before the
  // value's maker. If there are no ties and all may, each operator is alone,
  // from the last to the first.
  std::vector<std::vector<int32_t>> groups = {};
  std::vector<int32_t> backward_nodes = {};  // nodes
  std::vector<int32_t> operator_of = {};     // by node; -1: backward
  std::vector<int32_t> place_of = {};        // by node: index in
                                             // backward_nodes; -1: none
  std::vector<int32_t> value_of = {};        // by buffer; -1: no value
  // Indexed by operator. For one of stage either, at most the bytes that are
  // live if it does not run.
  std::vector<int64_t> forward_base = {};
  std::vector<int64_t> backward_base = {};  // by backward node
  // Before a backward node or, last, the end, while operators run again.
  std::vector<int64_t> again_base = {};
  // Bytes that do not count, in a relaxation: at operators of forward, and
  // before or at a backward node or, last, before the end. Empty: all count.
  std::vector<int64_t> forward_slack = {};
  std::vector<int64_t> backward_slack = {};

  int64_t SlackOf(const RematMoment& moment) const;

  int64_t BaseOf(const RematMoment& moment) const;
  // Returns the bytes that decisions may add at a moment.
  int64_t RoomAt(const RematMoment& moment, const RematBudget& budget) const;
  // Returns the moment between the passes.
  RematMoment Between() const {
    return {.op = static_cast<int32_t>(operators.size())};
  }
  // Returns the time of all operators, run once.
  double AllMs() const;
};

// Builds the problem, which refers to the graph. Throws InputError, naming a
// node, if nodes read, directly or not, the results of nodes that they are tied
// to.
RematProblem BuildRematProblem(const graph::JointGraph& graph);

// Returns the moment of a step of a simulation.
RematMoment MomentOf(const RematProblem& problem, const graph::JointRun& run,
                     int32_t step);

}  // namespace acplan::problems
