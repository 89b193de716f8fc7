#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/llm/layer_listing.h"
#include "costmodel/calculon/llm/peers.h"
#include "costmodel/calculon/llm/statistics.h"

namespace acplan::costmodel {

// Results as files have them, docs/file_formats.md: keys in order, whole
// numbers without a point, null for what does not exist.

// A whole number where it is one, null where it is not finite.
nlohmann::ordered_json NumberJson(double value);
nlohmann::ordered_json ToJson(const Execution& execution);
nlohmann::ordered_json ToJson(const Statistics& statistics);
nlohmann::ordered_json ToJson(const std::vector<LayerListing>& layers);
// By the id of each processor.
nlohmann::ordered_json PeersJson(const Execution& execution);

// Returns the text of a `.json` file, with two spaces an indent and no newline
// at the end, or that of a `.json.gz` file: a single line.
std::string ResultText(const nlohmann::ordered_json& json, bool is_packed);

// "num_procs,tensor_par,...,sample_rate": the keys of executions and
// statistics.
std::string CsvHeading();
// Their values, as Python's str writes them: True, None, 1e-05.
std::string CsvRow(const Execution& execution, const Statistics& statistics);

}  // namespace acplan::costmodel
