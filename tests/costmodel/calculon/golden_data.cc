#include "tests/costmodel/calculon/golden_data.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "graph/base/file_io.h"

namespace acplan::costmodel {

namespace fs = std::filesystem;
using nlohmann::json;

fs::path GoldenFile(const std::string& name) {
  return fs::path(ACPLAN_TEST_DATA_DIR) / "calculon" / name;
}

fs::path GoldenInput(const std::string& name) {
  return name.starts_with("custom/") ? GoldenFile(name)
                                     : fs::path(ACPLAN_DATA_DIR) / name;
}

std::vector<json> GoldenLines(const std::string& name) {
  std::istringstream text(graph::ReadFile(GoldenFile(name)));
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) {
    lines.push_back(json::parse(line));
  }
  return lines;
}

const Model& GoldenModel(const std::string& name) {
  static std::map<std::string, Model> models;
  const auto at = models.find(name);
  return at != models.end()
             ? at->second
             : models.emplace(name, ReadModel(GoldenInput(name))).first->second;
}

const System& GoldenSystem(const std::string& name) {
  static std::map<std::string, System> systems;
  const auto at = systems.find(name);
  return at != systems.end()
             ? at->second
             : systems.emplace(name, ReadSystem(GoldenInput(name)))
                   .first->second;
}

bool IsClose(double ours, const json& theirs) {
  if (theirs.is_null()) return std::isnan(ours);
  const double expected = theirs.get<double>();
  return std::abs(ours - expected) <= 1e-9 * std::abs(expected);
}

}  // namespace acplan::costmodel
