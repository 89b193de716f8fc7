#include "costmodel/calculon/llm/records.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <variant>

#include "costmodel/calculon/execution/execution_fields.h"
#include "graph/base/json_text.h"
#include "graph/base/number_limits.h"

namespace acplan::costmodel {
namespace {

using nlohmann::ordered_json;

// Appends JSON as json.dumps writes it with its default separators.
void AppendPacked(std::string& text, const ordered_json& json) {
  const char* separator = "";
  if (json.is_object()) {
    text += '{';
    for (const auto& [key, value] : json.items()) {
      text += separator + graph::CompactText(ordered_json(key)) + ": ";
      AppendPacked(text, value);
      separator = ", ";
    }
    text += '}';
  } else if (json.is_array()) {
    text += '[';
    for (const ordered_json& value : json) {
      text += separator;
      AppendPacked(text, value);
      separator = ", ";
    }
    text += ']';
  } else {
    text += graph::CompactText(json);
  }
}

void AppendNumber(std::string& text, double value) {
  if (std::isnan(value)) {
    text += "None";
  } else {
    fmt::format_to(std::back_inserter(text), "{}", value);
  }
}

}  // namespace

ordered_json NumberJson(double value) {
  constexpr auto kMostWhole = static_cast<double>(graph::kMostExactInteger);
  if (!std::isfinite(value)) return nullptr;
  if (value == std::trunc(value) && std::abs(value) <= kMostWhole) {
    return static_cast<int64_t>(value);
  }
  return value;
}

ordered_json ToJson(const Execution& execution) {
  ordered_json json;
  const auto fields = FieldsOf(execution);
  for (size_t i = 0; i < fields.size(); ++i) {
    std::visit(
        [&](const auto& value) {
          json[std::string(kExecutionKeys[i])] = value;
        },
        fields[i]);
  }
  return json;
}

ordered_json ToJson(const Statistics& statistics) {
  ordered_json json;
  for (size_t i = 0; i < statistics.size(); ++i) {
    json[std::string(kStatisticNames[i])] = NumberJson(statistics[i]);
  }
  return json;
}

ordered_json ToJson(const std::vector<LayerListing>& layers) {
  ordered_json json = ordered_json::array();
  for (const LayerListing& layer : layers) {
    ordered_json entry;
    entry["name"] = layer.name;
    for (size_t i = 0; i < layer.values.size(); ++i) {
      entry[std::string(kLayerStatisticNames[i])] = NumberJson(layer.values[i]);
    }
    json.push_back(std::move(entry));
  }
  return json;
}

ordered_json PeersJson(const Execution& execution) {
  ordered_json json = ordered_json::object();
  ordered_json::object_t& entries = json.get_ref<ordered_json::object_t&>();
  for (int64_t id = 0; id < execution.num_procs; ++id) {
    const Peers peers = PeersOf(execution, id);
    ordered_json entry = ordered_json::object();
    if (!peers.tensor.empty()) entry["tensor"] = peers.tensor;
    if (peers.pipeline) entry["pipeline"] = *peers.pipeline;
    if (!peers.data.empty()) entry["data"] = peers.data;
    entries.push_back({std::to_string(id), std::move(entry)});
  }
  return json;
}

std::string ResultText(const ordered_json& json, bool is_packed) {
  if (!is_packed) return json.dump(2);
  std::string text;
  AppendPacked(text, json);
  return text;
}

std::string CsvHeading() {
  return fmt::format("{},{}", fmt::join(kExecutionKeys, ","),
                     fmt::join(kStatisticNames, ","));
}

std::string CsvRow(const Execution& execution, const Statistics& statistics) {
  std::string row;
  row.reserve(1500);
  for (const ExecutionField& field : FieldsOf(execution)) {
    if (!row.empty()) row += ',';
    if (const bool* flag = std::get_if<bool>(&field)) {
      row += *flag ? "True" : "False";
    } else if (const int64_t* number = std::get_if<int64_t>(&field)) {
      fmt::format_to(std::back_inserter(row), "{}", *number);
    } else {
      row += std::get<std::string_view>(field);
    }
  }
  for (const double value : statistics) {
    row += ',';
    AppendNumber(row, value);
  }
  return row;
}

}  // namespace acplan::costmodel
