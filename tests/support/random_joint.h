#pragma once

#include <random>

#include "graph/joint/joint_graph.h"

namespace acplan::test_support {

struct JointShape {
  int forward = 6;        // nodes of stages forward and either
  int backward = 6;       // nodes
  bool has_rules = true;  // what may not be kept, or may not run again
};

// A joint graph whose backward nodes read forward values mostly in reverse order, as
// autograd's do, with either nodes, several results, scratch, inputs and outputs of all
// kinds. Valid for graph::ParseJointGraph.
graph::JointGraph RandomJoint(std::mt19937& random, const JointShape& shape);

// So many runs of one random graph as one step: forward of each in order, then backward
// from the last to the first. Every run but the first takes for its first input what the
// run before returns, and its nodes are tied to those of the first. Inputs are shared but
// for that one.
graph::JointGraph RandomRuns(std::mt19937& random, const JointShape& shape,
                             int runs);

}  // namespace acplan::test_support
