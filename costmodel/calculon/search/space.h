#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"

namespace acplan::costmodel {

// The problem of a search, which goes through all ways to train a model on a number of
// processors.
struct SearchProblem {
  Model model;
  System system;
  int64_t num_procs = 1;
  int64_t max_batch = 1;
  Datatype datatype = Datatype::kFloat16;
  std::vector<bool> fused_activation = {true};  // in the order of trial
  bool allows_tensor_overlap = true;
  bool allows_data_overlap = true;
};

// The space is walked in the order of its parts: units; within a unit, variants; within a
// variant, microbatch sizes; and within those, the tiers of the network for tensor,
// pipeline and data parallelism.

// The executions of a unit share degrees, interleaving, batch, recomputation, optimizer
// sharding and tensor-parallel communication. The other members have their defaults.
using SearchUnit = Execution;
std::vector<SearchUnit> SearchUnits(const SearchProblem& problem);

// A choice inside of a unit, apart from microbatches and tiers.
struct SearchVariant {
  bool seq_par_ag_redo = false;
  bool data_par_overlap = false;
  TensorOverlap tensor_par_overlap = TensorOverlap::kNone;
  bool weight_offload = false;
  bool activations_offload = false;
  bool optimizer_offload = false;
  bool fused_activation = false;

  bool operator==(const SearchVariant&) const = default;
};
std::vector<SearchVariant> SearchVariants(const SearchProblem& problem,
                                          const SearchUnit& unit);

std::vector<int64_t> MicrobatchSizes(const SearchProblem& problem,
                                     const SearchUnit& unit);

// The number of tiers that each kind of parallelism may use: all, or only the first if its
// degree is 1.
struct TierCounts {
  int tensor = 1;
  int pipeline = 1;
  int data = 1;

  int64_t Combinations() const { return int64_t{tensor} * pipeline * data; }
};
TierCounts SearchTiers(const SearchProblem& problem, const SearchUnit& unit);

// Returns the number of executions of a variant of a unit, which is the same for all of its
// variants.
int64_t CountVariant(const SearchProblem& problem, const SearchUnit& unit);

Execution MakeExecution(const SearchUnit& unit, const SearchVariant& variant);

}  // namespace acplan::costmodel
