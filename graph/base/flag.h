#pragma once

namespace acplan::graph {

// A bool for vectors, a byte each. std::vector<bool> packs its elements into bits, which
// takes more time, and has no references to them.
struct Flag {
  constexpr Flag(bool flag = false)  // NOLINT(google-explicit-constructor)
      : is_set(flag) {}
  constexpr operator bool() const {  // NOLINT(google-explicit-constructor)
    return is_set;
  }

  bool is_set;
};

}  // namespace acplan::graph
