#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "graph/base/json_fields.h"
#include "graph/profile/model_info.h"

namespace acplan::graph {

// The parts that the files of this folder have in common. Whatever parses
// throws InputError as JsonField does.

// An object all of whose keys may be missing or null.
ModelInfo ParseModelInfo(const JsonField& field);
DeviceInfo ParseDeviceInfo(const JsonField& field);

nlohmann::ordered_json ModelInfoJson(const ModelInfo& model);
nlohmann::ordered_json DeviceInfoJson(const DeviceInfo& device);

// A module's fully qualified name: no component empty, at most 1000 of them,
// no control character.
std::string ParseFqn(const JsonField& field);

// The index of each name; `modules` is the array whose entries have them as
// `fqn`, and `list` its key. Throws InputError where two are the same. Views
// the same strings.
std::unordered_map<std::string_view, int> IndexFqns(
    const JsonField& modules, std::span<const std::string_view> fqns,
    std::string_view list = "modules");

// On one line, without spaces; what is not UTF-8 is replaced.
std::string CompactText(const nlohmann::ordered_json& json);

}  // namespace acplan::graph
