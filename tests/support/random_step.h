#pragma once

#include <random>

#include "graph/trace/trace.h"

namespace acplan::test_support {

// The features of the models of RandomStep.
struct StepOptions {
  int blocks_least = 2, blocks_most = 4;        // in the root
  int operators_least = 2, operators_most = 4;  // in a block without blocks
  bool nests = false;                           // blocks that consist of blocks
  bool skips = false;             // results that blocks far behind take, too
  bool shares_arguments = false;  // masks and biases that many blocks take
  bool shares_storages = false;   // results that several operators save
  bool shares_modules = false;    // blocks that other blocks call, too
  bool repeats = false;           // blocks that are called several times
  bool writes = false;            // operators in place
  bool draws = false;             // random operators
  bool keeps = false;             // tensors that modules keep as attributes
  bool makes_sparse = false;      // operators that make sparse tensors
  // Unused results, saved tensors that backward never asks for, calls without
  // gradients, gradients that are saved tensors themselves.
  bool has_odd_ends = false;
};

// Returns a training step of a random small model, as PyTorch would trace it:
// modules run operators and each other on the values of their variables,
// autograd keeps what their backward needs, and releases it when that has run.
// Unlike RandomTrace it is consistent in itself.
graph::Trace RandomStep(std::mt19937& random, const StepOptions& options = {});

}  // namespace acplan::test_support
