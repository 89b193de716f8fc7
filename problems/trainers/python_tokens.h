#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::problems {

enum class PythonTokenKind { kName, kNumber, kText, kSign, kLineEnd };

struct PythonToken {
  PythonTokenKind kind = PythonTokenKind::kSign;
  std::string text = {};  // of a text without its quotes
  int line = 0;           // from 1
  // The column of the first token of a statement's line; -1 for others.
  int indent = -1;
  // A bracket's own place among the tokens' brackets: of an opening one, the index of the
  // token that closes it; of other tokens, the index of the innermost bracket that is open
  // around them, or kNoBracket.
  size_t partner = 0;

  bool Is(std::string_view sign) const {
    return kind == PythonTokenKind::kSign && text == sign;
  }
  bool IsName(std::string_view name) const {
    return kind == PythonTokenKind::kName && text == name;
  }
};

inline constexpr size_t kNoBracket = static_cast<size_t>(-1);

// Splits Python code into tokens, without comments. Line ends inside brackets are left out.
// The last token is a line end. Throws InputError that begins with `name` and has the line
// for a text or a bracket that does not end.
std::vector<PythonToken> PythonTokens(std::string_view text,
                                      const std::string& name);

}  // namespace acplan::problems
