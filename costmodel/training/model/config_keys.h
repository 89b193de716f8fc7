#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/json_fields.h"

namespace acplan::costmodel {

// Alternative names of a key; errors name the first one.
using KeyNames = std::initializer_list<std::string_view>;

// The keys of a model's configuration, and a record of the keys that were asked for. A key
// that it lacks is taken from `defaults` (JSON). A configuration that is a whole file, and
// not a part, must have the sizes that every file has.
class ConfigKeys {
 public:
  ConfigKeys(graph::JsonField config, std::string_view defaults, bool is_part);

  // Returns the value of the first of these keys that the configuration has, else the
  // default's. Returns nothing if the value is null.
  std::optional<graph::JsonField> Find(KeyNames names);
  bool Has(KeyNames names) { return Find(names).has_value(); }

  // Returns a size of at least 1. Fails if there is none.
  int64_t Size(KeyNames names);
  // Returns a size of at least 0.
  int64_t SizeOr(KeyNames names, int64_t fallback);
  bool Flag(std::string_view name, bool fallback);
  // Returns a number from 0 to 1; 0 if there is none.
  double Share(KeyNames names);
  // Returns the whole numbers, at least 0, of a list; nothing if there is none.
  std::vector<int64_t> Numbers(std::string_view name);

  const graph::JsonField& config() const { return config_; }

  // Marks keys as used that do not matter beside others.
  void Supersede(KeyNames names) {
    used_keys_.insert(names.begin(), names.end());
  }

  // Fails if the configuration has a key that nothing asked for and that may change the
  // model's shape: one with a value other than null, false, 0 and what is empty, unless it is
  // known to be harmless.
  void RequireKnownKeys() const;

 private:
  graph::JsonField config_;
  nlohmann::json default_document_;
  graph::JsonField defaults_;
  bool is_part_;
  std::set<std::string, std::less<>> used_keys_ = {};
};

// Returns the keys that name parts which no model here has, such as state spaces.
std::vector<std::string> ForeignKeys(const graph::JsonField& config);

}  // namespace acplan::costmodel
