#pragma once

#include <random>

#include "graph/joint/joint_graph.h"

namespace acplan::test_support {

struct JointShape {
  int forward = 6;        // nodes of stages forward and either
  int backward = 6;       // nodes
  bool has_rules = true;  // buffers that may not be kept, nodes that may not
                          // run again
};

// Returns a joint graph whose backward nodes read forward values mostly in
// reverse order, as autograd's do, with nodes of stage either, several results,
// scratch, inputs and outputs of all kinds. Valid for graph::ParseJointGraph.
graph::JointGraph RandomJoint(std::mt19937& random, const JointShape& shape);

// Returns so many runs of one random graph as one step: forward of each in
// order, then backward from the last to the first. Every run except the first
// takes the previous run's output as its first input, and its nodes are tied to
// those of the first. The other inputs are shared.
graph::JointGraph RandomRuns(std::mt19937& random, const JointShape& shape,
                             int runs);

}  // namespace acplan::test_support
