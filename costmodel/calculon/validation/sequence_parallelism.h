#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace acplan::costmodel {

// The runs of Korthikanti et al., "Reducing activation recomputation in large
// transformer models" (2022): what the paper reports against what the model
// computes.
struct Comparison {
  std::string_view model;
  std::string_view mode;  // recomputation and sequence parallelism
  double published = 0;
  double computed = 0;
  double memory = 0;  // that is needed of the first tier, in bytes

  // Percent of the published value that is missing.
  double Delta() const { return 100 * (1 - computed / published); }
};

// A figure or table of the paper, model by model. The values of figures 1 and 7
// come from closed formulas, those of table 5 are measured.
using ComparisonTable = std::vector<Comparison>;

double AverageError(const ComparisonTable& table);
double MaximumError(const ComparisonTable& table);

// `data`: a folder with models, systems and validation. They throw InputError
// where a file is missing or wrong. Capacities do not count.

struct Figure1 {
  ComparisonTable states;       // GiB of parameters, gradients and optimizer
  ComparisonTable activations;  // GiB
};
Figure1 CompareFigure1(const std::filesystem::path& data);

// Activations in percent of those without recomputation.
ComparisonTable CompareFigure7(const std::filesystem::path& data);

// Seconds of a batch.
ComparisonTable CompareTable5(const std::filesystem::path& data);

}  // namespace acplan::costmodel
