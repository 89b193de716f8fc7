#pragma once

namespace acplan::graph {

// A bool in a vector: std::vector<bool> packs bits, which takes time.
struct Flag {
  constexpr Flag(bool flag = false)  // NOLINT(google-explicit-constructor)
      : is_set(flag) {}
  constexpr operator bool() const {  // NOLINT(google-explicit-constructor)
    return is_set;
  }

  bool is_set;
};

}  // namespace acplan::graph
