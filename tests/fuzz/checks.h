#pragma once

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "graph/base/input_error.h"

// The demands of the fuzzers.

inline void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::cerr << "broken: " << what << '\n';
  std::abort();
}

// Checks a complaint about a file, or a flag.
inline void CheckMessage(const acplan::InputError& error,
                         std::string_view start = "fuzz.json: ") {
  const std::string_view message = error.what();
  Require(message.starts_with(start), "a message that names its file or flag");
  Require(message.find('\n') == std::string_view::npos,
          "a message of one line");
  Require(message.size() < 2000, "a short message");
}
