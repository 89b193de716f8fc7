#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/trace/link_time.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The copies of the inputs of a model's blocks to the host's memory and back, in a step
// whose blocks run again as wholes. A copy costs nothing if it takes no longer than
// the forward pass of a block: then it has ended when the next one begins.
struct InputMoves {
  std::string class_name;  // of the blocks
  int64_t blocks = 0;      // calls of them
  int64_t bytes = 0;       // of the inputs that move
  double forward_ms = 0;   // of all blocks
  // The part of forward_ms that grows with the square of the sequence: fused attention.
  double attention_ms = 0;
  double send_ms = 0;   // of all copies to the host
  double fetch_ms = 0;  // of all copies back
  double stall_ms =
      0;  // that the step waits for them, by the model of the link

  // Returns how many times the slower copy fits in a block's forward pass.
  double Factor() const;
  // Returns the least multiple of the sequence's length from which copies are hidden: bytes
  // and the rest of forward_ms grow in proportion to it. 0: at every length. Nothing: at
  // none.
  std::optional<double> HiddenFrom() const;
};

// Returns it for the class of modules, of which there are two or more, whose calls take the
// most time; nothing if no input of such modules can move.
std::optional<InputMoves> InputMovesOf(const TraceProblem& problem,
                                       const graph::LinkRates& rates);

}  // namespace acplan::problems
