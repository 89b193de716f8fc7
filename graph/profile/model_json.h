#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "graph/base/json_fields.h"
#include "graph/profile/model_info.h"

namespace acplan::graph {

// The parts that the files of this folder have in common. All parsers throw InputError as
// JsonField does.

// Parses an object all of whose keys may be missing or null.
ModelInfo ParseModelInfo(const JsonField& field);
DeviceInfo ParseDeviceInfo(const JsonField& field);
TimeErrors ParseTimeErrors(const JsonField& field);

nlohmann::ordered_json ModelInfoJson(const ModelInfo& model);
nlohmann::ordered_json DeviceInfoJson(const DeviceInfo& device);
nlohmann::ordered_json TimeErrorsJson(const TimeErrors& errors);

// Parses a module's fully qualified name: no empty component, at most 1000 components, no
// control character.
std::string ParseFqn(const JsonField& field);

// Returns the index of each name. `modules` is the array whose entries have the names as
// `fqn`, and `list` its key. Throws InputError if two names are the same. The keys view the
// strings of `fqns`.
std::unordered_map<std::string_view, int> IndexFqns(
    const JsonField& modules, std::span<const std::string_view> fqns,
    std::string_view list = "modules");

}  // namespace acplan::graph
