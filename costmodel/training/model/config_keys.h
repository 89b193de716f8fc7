#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json_fields.h"

namespace acplan::costmodel {

// Names of the same thing; complaints say the first.
using KeyNames = std::initializer_list<std::string_view>;

// The keys of a model's configuration, and which of them were asked for. What it does
// not say is taken from `defaults` (JSON); of a whole file, the sizes that every file
// says are not.
class ConfigKeys {
 public:
  ConfigKeys(graph::JsonField config, std::string_view defaults, bool is_part);

  // The value of the first of these keys that is said, else the default's. Null says
  // that there is none.
  std::optional<graph::JsonField> Find(KeyNames names);
  bool Has(KeyNames names) { return Find(names).has_value(); }

  // At least 1. Fails where nothing says it.
  int64_t Size(KeyNames names);
  int64_t SizeOr(KeyNames names, int64_t fallback);  // at least 0
  bool Flag(std::string_view name, bool fallback);
  double Share(KeyNames names);  // 0 where nothing says it
  // Whole numbers of a list, at least 0; empty where there is none.
  std::vector<int64_t> Numbers(std::string_view name);

  // Takes keys that begin so for used.
  void Ignore(std::string_view beginning);

  const graph::JsonField& config() const { return config_; }

  // Keys that nothing asked for and that are not known to leave sizes as they are.
  // Of these, such as name parts that models of these types do not have (state
  // spaces, linear attention; experts where `has_experts` is not set) fail.
  std::vector<std::string> UnusedKeys(bool has_experts) const;

 private:
  graph::JsonField config_;
  nlohmann::json default_document_;
  graph::JsonField defaults_;
  bool is_part_;
  std::set<std::string, std::less<>> used_ = {};
};

// Keys that name parts which no model here has, such as state spaces.
std::vector<std::string> ForeignKeys(const graph::JsonField& config);

}  // namespace acplan::costmodel
