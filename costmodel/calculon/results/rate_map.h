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

  // In the order of a nested map, of results by tensor and then pipeline
  // parallelism; not every pair need be there.
  std::vector<Cell> cells;

  std::vector<int64_t> TensorPars() const;    // ascending, once each
  std::vector<int64_t> PipelinePars() const;  // ascending, once each
  // Null where the pair is not there or has no rate.
  const Cell* Find(int64_t tensor_par, int64_t pipeline_par) const;
  double Least() const;  // of the rates that there are
  double Most() const;
};

// Reads by the name's ending
// - .json, .json.gz: {"TP": {"PP": {"stats": {"sample_rate": x}}}}, where an
//   inner object without `stats` has no rate; or the results of a search,
//   {"0": {"execution": {...}, "stats": {...}}, ...};
// - .csv, .csv.gz: the results of a search, with the columns `tensor_par`,
//   `pipeline_par` and `sample_rate`; a line that begins with # says nothing.
// Takes the best rate of each pair from results. Throws InputError, also where
// there is no rate, and where a nested map is no grid.
RateMap ReadRateMap(const std::filesystem::path& path);

// Throws InputError where there are fewer than two tensor or two pipeline
// parallelisms.
void RequireGrid(const RateMap& map, const std::string& file);

}  // namespace acplan::costmodel
