#pragma once

#include <random>

#include "graph/trace/trace.h"

namespace acplan::test_support {

// What the models of RandomStep have.
struct StepOptions {
  int blocks_least = 2, blocks_most = 4;        // in the root
  int operators_least = 2, operators_most = 4;  // in a block without blocks
  bool nests = false;                           // blocks that consist of blocks
  bool skips = false;             // results that blocks far behind take as well
  bool shares_arguments = false;  // masks and biases that many blocks take
  bool shares_storages = false;   // results that several operators save
  bool shares_modules = false;    // blocks that other blocks call as well
  bool repeats = false;           // blocks that are called several times
  bool writes = false;            // operators in place
  bool draws = false;             // random operators
  bool keeps = false;             // tensors that modules keep as attributes
  bool makes_sparse = false;      // operators that make sparse tensors
  // Results not used, saves not asked for, calls without gradients, gradients
  // that are what was saved.
  bool has_odd_ends = false;
};

// A training step of a random small model, as PyTorch would trace it: modules
// run operators and each other on what they hold in variables, autograd keeps
// what their backward needs, and lets go of it when that has run. Unlike
// RandomTrace consistent in itself.
graph::Trace RandomStep(std::mt19937& random, const StepOptions& options = {});

}  // namespace acplan::test_support
