#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "costmodel/calculon/execution/execution.h"

namespace acplan::costmodel {

// A row of table 1 of Narayanan et al., "Efficient large-scale language model
// training on GPU clusters using Megatron-LM" (2021): A100, sequences of 2048,
// a vocabulary of 51,200, full recomputation.
struct MegatronRun {
  std::string_view model;
  double measured = 0;  // TFLOP/s per processor
  double computed = 0;
  // The execution, with the microbatch and the interleaving that the cost model finds
  // fastest, since the table does not give them.
  Execution execution;

  // Returns by how many percent the computed time is above the measured one.
  double TimeError() const { return 100 * (measured / computed - 1); }
};

// Compares the table with the model. `data` is a folder with systems. Throws InputError if
// a file is missing or wrong.
std::vector<MegatronRun> CompareMegatron2021(const std::filesystem::path& data);

// Returns the mean of the absolute values of TimeError.
double AverageTimeError(const std::vector<MegatronRun>& runs);

}  // namespace acplan::costmodel
