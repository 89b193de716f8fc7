#include "graph/base/message_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
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

struct Range {
  char32_t first;
  char32_t last;
};

// Characters that JSON leaves as they are, and that terminals and browsers obey or do
// not show: DEL, the controls of C1, separators of lines, Unicode's category Cf (what
// changes the direction of text, joiners, tags), fillers and variation selectors.
// Ascending.
constexpr auto kUnseen = std::to_array<Range>(
    {{0x7F, 0x9F},       {0xAD, 0xAD},       {0x34F, 0x34F},
     {0x600, 0x605},     {0x61C, 0x61C},     {0x6DD, 0x6DD},
     {0x70F, 0x70F},     {0x890, 0x891},     {0x8E2, 0x8E2},
     {0x115F, 0x1160},   {0x17B4, 0x17B5},   {0x180B, 0x180F},
     {0x200B, 0x200F},   {0x2028, 0x202E},   {0x2060, 0x206F},
     {0x3164, 0x3164},   {0xFE00, 0xFE0F},   {0xFEFF, 0xFEFF},
     {0xFFA0, 0xFFA0},   {0xFFF0, 0xFFFB},   {0x110BD, 0x110BD},
     {0x110CD, 0x110CD}, {0x13430, 0x1343F}, {0x1BCA0, 0x1BCA3},
     {0x1D173, 0x1D17A}, {0xE0000, 0xE0FFF}});

// A byte of more than 0x7F by itself is no character.
bool IsUnseen(char32_t c, size_t length) {
  if (length == 1) return c == 0x7F;
  const auto* range =
      std::ranges::lower_bound(kUnseen, c, std::less<>(), &Range::last);
  return range != kUnseen.end() && range->first <= c;
}

// The code point of the UTF-8 sequence at `at`, and its length; a byte and 1 if
// there is none.
std::pair<char32_t, size_t> CodePointAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[at + i]));
  };
  const char32_t lead = byte(0);
  const size_t length = lead < 0xC0   ? 1
                        : lead < 0xE0 ? 2
                        : lead < 0xF0 ? 3
                        : lead < 0xF8 ? 4
                                      : 1;
  if (length == 1 || length > text.size() - at) return {lead, 1};
  char32_t c = lead & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {lead, 1};
    c = c << 6 | (byte(i) & 0x3F);
  }
  return {c, length};
}

// "\u200d", or "\udb40\udc41": as JSON has it.
std::string Escape(char32_t c) {
  const auto value = static_cast<uint32_t>(c);
  if (value < 0x10000) return fmt::format("\\u{:04x}", value);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (value >> 10),
                     0xDC00 | (value & 0x3FF));
}

}  // namespace

std::string ShowUnseen(std::string_view text) {
  std::string visible;
  for (size_t at = 0; at < text.size();) {
    const auto [c, length] = CodePointAt(text, at);
    if (IsUnseen(c, length)) {
      visible += Escape(c);
    } else {
      visible += text.substr(at, length);
    }
    at += length;
  }
  return visible;
}

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
  return ShowUnseen(result);
}

std::string Quoted(std::string_view text, size_t most) {
  const std::string_view cut = Cut(text, most);
  return ShowUnseen('"' + Escaped(cut) +
                    (cut.size() < text.size() ? "...\"" : "\""));
}

bool HasControls(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto [c, length] = CodePointAt(text, at);
    if (c < 0x20 || IsUnseen(c, length)) return true;
    at += length;
  }
  return false;
}

}  // namespace acplan::graph
