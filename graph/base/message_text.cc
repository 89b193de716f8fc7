#include "graph/base/message_text.h"

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

namespace acplan::graph {
namespace {

std::string Escaped(std::string_view text) {
  const std::string dumped =
      nlohmann::json(std::string(text))
          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return dumped.substr(1, dumped.size() - 2);
}

std::string_view Cut(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  auto is_continuation = [](char c) { return (c & 0xC0) == 0x80; };
  size_t end = most;
  while (end > 0 && most - end < 3 && is_continuation(text[end])) --end;
  return text.substr(0, end);
}

// Returns whether a character is one that JSON does not escape and that terminals obey:
// DEL, the controls of C1, characters that change the direction of text, and line
// separators. A single byte above 0x7F is part of a longer sequence.
bool IsObeyed(char32_t c, size_t length) {
  if (length == 1) return c == 0x7F;
  return c <= 0x9F || c == 0x061C || (0x200E <= c && c <= 0x200F) ||
         (0x2028 <= c && c <= 0x202E) || (0x2066 <= c && c <= 0x2069) ||
         c == 0xFEFF;
}

// Returns the code point of the UTF-8 sequence of at most three bytes at `at`, and its
// length; for any other byte, the byte and 1.
std::pair<char32_t, size_t> CodePointAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const size_t remaining = text.size() - at;
  if ((byte(0) & 0xE0) == 0xC0 && remaining >= 2) {
    return {(byte(0) & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  }
  if ((byte(0) & 0xF0) == 0xE0 && remaining >= 3) {
    return {(byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F),
            3};
  }
  return {byte(0), 1};
}

// Escapes the characters that terminals obey. `text` is valid UTF-8.
std::string EscapeObeyed(std::string_view text) {
  std::string escaped;
  for (size_t at = 0; at < text.size();) {
    const auto [c, length] = CodePointAt(text, at);
    if (IsObeyed(c, length)) {
      escaped += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    } else {
      escaped += text.substr(at, length);
    }
    at += length;
  }
  return escaped;
}

}  // namespace

std::string OneLine(std::string_view text, size_t most) {
  const std::string_view cut = Cut(text, most);
  std::string result;
  std::string run;
  for (char c : cut) {
    if (c == '"' || c == '\\') {
      result += Escaped(run) + c;
      run.clear();
    } else {
      run += c;
    }
  }
  result += Escaped(run);
  if (cut.size() < text.size()) result += "...";
  return EscapeObeyed(result);
}

std::string Quoted(std::string_view text, size_t most) {
  const std::string_view cut = Cut(text, most);
  return EscapeObeyed('"' + Escaped(cut) +
                      (cut.size() < text.size() ? "...\"" : "\""));
}

bool HasControls(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto [c, length] = CodePointAt(text, at);
    if (c < 0x20 || IsObeyed(c, length)) return true;
    at += length;
  }
  return false;
}

}  // namespace acplan::graph
