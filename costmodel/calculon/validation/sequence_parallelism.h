#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace acplan::costmodel {

// A run of Korthikanti et al., "Reducing activation recomputation in large transformer
// models" (2022): the value that the paper reports and the value that the model computes.
struct Comparison {
  std::string_view model;
  std::string_view mode;  // recomputation and sequence parallelism
  double published = 0;
  double computed = 0;
  // The need for memory of the first tier, in bytes.
  double memory = 0;

  // Returns by how many percent the computed value is below the published one.
  double Delta() const { return 100 * (1 - computed / published); }
};

// A figure or table of the paper, model by model. The values of figures 1 and 7 come from
// closed formulas, those of table 5 are measured.
using ComparisonTable = std::vector<Comparison>;

double AverageError(const ComparisonTable& table);
double MaximumError(const ComparisonTable& table);

// The functions below take `data`, a folder with models, systems and validation. They throw
// InputError if a file is missing or wrong. Capacities do not count.

struct Figure1 {
  ComparisonTable states;       // GiB of parameters, gradients and optimizer
  ComparisonTable activations;  // GiB
};
Figure1 CompareFigure1(const std::filesystem::path& data);

// Compares activations, in percent of those without recomputation.
ComparisonTable CompareFigure7(const std::filesystem::path& data);

// Compares the seconds of a batch.
ComparisonTable CompareTable5(const std::filesystem::path& data);

}  // namespace acplan::costmodel
