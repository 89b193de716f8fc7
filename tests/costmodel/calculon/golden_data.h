#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/hardware/system.h"

// Outputs of Calculon, tests/data/calculon/README.md.
namespace acplan::costmodel {

// Returns the path of an input such as "models/gpt3-175B.json" or
// "custom/systems/nomem2_1net.json".
std::filesystem::path GoldenInput(const std::string& name);

// Returns the path of a file in tests/data/calculon.
std::filesystem::path GoldenFile(const std::string& name);

// Returns the objects of a file of JSON lines.
std::vector<nlohmann::json> GoldenLines(const std::string& name);

const Model& GoldenModel(const std::string& name);
const System& GoldenSystem(const std::string& name);

// Returns whether `ours` equals `theirs` up to a relative 1e-9; NaN is null.
bool IsClose(double ours, const nlohmann::json& theirs);

}  // namespace acplan::costmodel
