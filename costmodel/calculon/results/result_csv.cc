#include "costmodel/calculon/results/result_csv.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/text_value.h"

namespace acplan::costmodel {

namespace {

using graph::ParseTextValue;
using graph::PythonText;
using graph::TextValue;

[[noreturn]] void Refuse(const std::string& file, const std::string& message) {
  throw InputError(fmt::format("{}: {}", graph::OneLine(file, 400), message));
}

const TextValue& Get(const TextValue& object, const std::string& key,
                     const std::string& place, const std::string& file) {
  if (const TextValue* value = object.Find(key)) return *value;
  Refuse(file, fmt::format("{}: expected the key {}, found none", place,
                           graph::Quoted(key)));
}

}  // namespace

std::string ResultCsv(const std::filesystem::path& results) {
  const std::string file = results.string();
  const TextValue document = ParseTextValue(graph::ReadJsonText(results), file);
  const TextValue* first = document.Find("0");
  if (first == nullptr) {
    Refuse(file,
           "expected the results of a search, {\"0\": {\"execution\": ..., "
           "\"stats\": ...}, ...}, found no entry \"0\"");
  }
  std::string csv = ",";
  std::vector<std::pair<std::string, std::string>> columns;
  for (const auto& [category, values] : first->members) {
    if (values.kind != TextValue::Kind::kObject) {
      Refuse(file, fmt::format("0.{}: expected an object, found {}",
                               graph::OneLine(category),
                               graph::Quoted(PythonText(values))));
    }
    for (const auto& [key, unused] : values.members) {
      columns.emplace_back(category, key);
      csv += key + ",";
    }
  }
  if (columns.empty()) Refuse(file, "0: expected an execution, found no keys");
  csv += ",\n";
  for (const auto& [rank, entry] : document.members) {
    const std::string place = graph::OneLine(rank);
    csv += rank + ",";
    for (const auto& [category, key] : columns) {
      const TextValue& values = Get(entry, category, place, file);
      csv += PythonText(Get(values, key, place + "." + category, file)) + ",";
    }
    csv += ",\n";
  }
  return csv;
}

}  // namespace acplan::costmodel
