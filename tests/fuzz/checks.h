#pragma once

#include <cstdlib>
#include <iostream>
#include <string_view>

#include "graph/input_error.h"

// What the fuzzers of files demand.

inline void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::cerr << "broken: " << what << '\n';
  std::abort();
}

// Of a complaint about "fuzz.json".
inline void CheckMessage(const acplan::InputError& error) {
  const std::string_view message = error.what();
  Require(message.starts_with("fuzz.json: "), "a message that names its file");
  Require(message.find('\n') == std::string_view::npos,
          "a message of one line");
  Require(message.size() < 2000, "a short message");
}
