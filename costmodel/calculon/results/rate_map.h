#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acplan::costmodel {

// The sample rate over tensor and pipeline parallelism.
struct RateMap {
  struct Cell {
    int64_t tensor_par = 0;
    int64_t pipeline_par = 0;
    std::optional<double> rate;  // samples per second
    std::string text;            // the rate as the file has it
  };

  // In the order of the file for a nested map, for results in the order of tensor and then
  // pipeline parallelism. Pairs may be missing.
  std::vector<Cell> cells;

  std::vector<int64_t> TensorPars() const;    // ascending, once each
  std::vector<int64_t> PipelinePars() const;  // ascending, once each
  // Returns the cell of a pair; null if the pair is missing or has no rate.
  const Cell* Find(int64_t tensor_par, int64_t pipeline_par) const;
  // Returns the least or the largest of the existing rates.
  double Least() const;
  double Most() const;
};

// Reads a map. The end of the name says how:
// - .json, .json.gz: {"TP": {"PP": {"stats": {"sample_rate": x}}}}, where an inner object
//   without `stats` has no rate; or the results of a search, {"0": {"execution": {...},
//   "stats": {...}}, ...};
// - .csv, .csv.gz: the results of a search, with the columns `tensor_par`, `pipeline_par`
//   and `sample_rate`; lines that begin with # are ignored.
//
// Takes the best rate of each pair from results. Throws InputError, also if there is no
// rate, and if a nested map is no grid.
RateMap ReadRateMap(const std::filesystem::path& path);

// Throws InputError if there are fewer than two tensor or two pipeline parallelisms.
void RequireGrid(const RateMap& map, const std::string& file);

}  // namespace acplan::costmodel
