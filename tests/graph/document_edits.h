#pragma once

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

namespace acplan::graph {

// A change of a valid document.
struct Edit {
  std::string pointer;
  std::string value;  // JSON; "" removes the member
};

inline nlohmann::json Changed(nlohmann::json document, const Edit& edit) {
  const nlohmann::json::json_pointer pointer(edit.pointer);
  if (!edit.value.empty()) {
    document[pointer] = nlohmann::json::parse(edit.value);
  } else {
    document[pointer.parent_pointer()].erase(pointer.back());
  }
  return document;
}

// A change that makes a document invalid, and the complaint about it.
struct BadRow {
  Edit edit;
  std::string path;  // as named in the message
  std::string expected, found;
};

inline auto ComplainsOf(const std::string& file, const BadRow& row) {
  using testing::AllOf;
  using testing::HasSubstr;
  const std::string place =
      row.path.empty() ? file + ": " : file + ": " + row.path + ": ";
  return AllOf(testing::StartsWith(place + "expected "),
               HasSubstr(row.expected), HasSubstr("found " + row.found),
               testing::Not(HasSubstr("\n")));
}

}  // namespace acplan::graph
