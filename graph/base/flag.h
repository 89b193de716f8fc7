#pragma once

#include <compare>

namespace acplan::graph {

// A bool in a vector: std::vector<bool> packs bits, which takes time.
struct Flag {
  constexpr Flag(bool flag = false)  // NOLINT(google-explicit-constructor)
      : is_set(flag) {}
  constexpr operator bool() const {  // NOLINT(google-explicit-constructor)
    return is_set;
  }
  constexpr auto operator<=>(const Flag&) const = default;
  constexpr bool operator==(const Flag&) const = default;

  bool is_set;
};

}  // namespace acplan::graph
