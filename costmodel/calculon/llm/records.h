#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/llm/layer_listing.h"
#include "costmodel/calculon/llm/peers.h"
#include "costmodel/calculon/llm/statistics.h"

namespace acplan::costmodel {

// Results in the form of files (docs/file_formats.md): keys in order, whole numbers without
// a point, null for values that do not exist.

// Returns a number as JSON: an integer if it is whole, null if it is not finite.
nlohmann::ordered_json NumberJson(double value);
nlohmann::ordered_json ToJson(const Execution& execution);
nlohmann::ordered_json ToJson(const Statistics& statistics);
nlohmann::ordered_json ToJson(const std::vector<LayerListing>& layers);
// Returns the peers of all processors. The keys are the ids of the processors.
nlohmann::ordered_json PeersJson(const Execution& execution);

// Returns the text of a `.json` file, with an indent of two spaces and no newline at the
// end, or that of a `.json.gz` file, which is a single line.
std::string ResultText(const nlohmann::ordered_json& json, bool is_packed);

// Returns the keys of executions and statistics: "num_procs,tensor_par,...,sample_rate".
std::string CsvHeading();
// Returns the values of these keys, as Python's str writes them: True, None, 1e-05.
std::string CsvRow(const Execution& execution, const Statistics& statistics);

}  // namespace acplan::costmodel
