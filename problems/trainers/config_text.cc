#include "problems/trainers/config_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::problems {
namespace {

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

std::string WithoutComments(std::string_view text) {
  std::string plain;
  char quote = 0;
  bool is_comment = false;
  for (const char c : text) {
    if (c == '\n') {
      is_comment = false;
      quote = 0;
    } else if (!is_comment && (c == '"' || c == '\'')) {
      quote = quote == 0 ? c : quote == c ? 0 : quote;
    } else if (c == '#' && quote == 0) {
      is_comment = true;
    }
    if (!is_comment) plain += c;
  }
  return plain;
}

std::string Trimmed(std::string_view text) {
  const auto is_space = [](char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0;
  };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  const bool is_quoted = text.size() >= 2 && text.front() == text.back() &&
                         (text.front() == '"' || text.front() == '\'');
  if (is_quoted) text = text.substr(1, text.size() - 2);
  return std::string(text);
}

// Returns the place after the word at `place`, with the quote that may follow; npos if
// what stands there is a part of another word.
size_t EndOfWord(const std::string& text, size_t place, size_t length) {
  if (place > 0 && (IsWordCharacter(text[place - 1]) || text[place - 1] == '.'))
    return std::string::npos;
  size_t end = place + length;
  if (end < text.size() && IsWordCharacter(text[end])) return std::string::npos;
  if (end < text.size() && (text[end] == '"' || text[end] == '\'')) ++end;
  return end;
}

// Returns the parts between commas.
std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    std::string part = Trimmed(text.substr(0, comma));
    if (!part.empty()) parts.push_back(std::move(part));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

// Returns the lines that begin with a dash.
std::vector<std::string> Dashes(std::string_view text) {
  std::vector<std::string> items;
  while (!text.empty()) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, line_end);
    text.remove_prefix(std::min(line_end + 1, text.size()));
    const size_t first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos) continue;
    if (line[first] != '-') break;
    items.push_back(Trimmed(line.substr(first + 1)));
  }
  return items;
}

}  // namespace

ConfigText::ConfigText(std::string_view text, std::string name)
    : text_(WithoutComments(text)), name_(std::move(name)) {}

bool ConfigText::Mentions(std::string_view word) const {
  for (size_t place = text_.find(word); place != std::string::npos;
       place = text_.find(word, place + 1)) {
    if (EndOfWord(text_, place, word.size()) != std::string::npos) return true;
  }
  return false;
}

size_t ConfigText::FindValue(std::string_view key) const {
  for (size_t place = text_.find(key); place != std::string::npos;
       place = text_.find(key, place + 1)) {
    size_t end = EndOfWord(text_, place, key.size());
    if (end == std::string::npos) continue;
    end = text_.find_first_not_of(" \t", end);
    if (end == std::string::npos) continue;
    if (text_[end] == ':' || text_[end] == '=') return end + 1;
  }
  return std::string::npos;
}

std::optional<std::string> ConfigText::Value(std::string_view key) const {
  const size_t begin = FindValue(key);
  if (begin == std::string::npos) return std::nullopt;
  const size_t end =
      std::min(text_.find_first_of("\n,)}]", begin), text_.size());
  return Trimmed(std::string_view(text_).substr(begin, end - begin));
}

bool ConfigText::IsTrue(std::string_view key, bool fallback) const {
  const std::optional<std::string> value = Value(key);
  if (!value) return fallback;
  if (*value == "true" || *value == "True") return true;
  if (*value != "false" && *value != "False") {
    Fail(key, "true or false", graph::Quoted(*value));
  }
  return false;
}

int ConfigText::Whole(std::string_view key, int least, int fallback) const {
  const std::optional<std::string> value = Value(key);
  if (!value) return fallback;
  const bool is_number = !value->empty() && value->size() < 9 &&
                         std::ranges::all_of(*value, [](unsigned char c) {
                           return std::isdigit(c) != 0;
                         });
  const int number = is_number ? std::stoi(*value) : least - 1;
  if (number < least) {
    Fail(key, fmt::format("a whole number from {}", least),
         graph::Quoted(*value));
  }
  return number;
}

std::optional<std::vector<std::string>> ConfigText::List(
    std::string_view key) const {
  size_t begin = FindValue(key);
  if (begin == std::string::npos) return std::nullopt;
  begin = std::min(text_.find_first_not_of(" \t\r", begin), text_.size());
  const std::string_view rest = std::string_view(text_).substr(begin);
  if (rest.starts_with('\n')) return Dashes(rest.substr(1));
  if (rest.starts_with('[') || rest.starts_with('{')) {
    const size_t end = rest.find(rest.front() == '[' ? ']' : '}');
    if (end == std::string_view::npos) {
      Fail(key, "a closing bracket", "the end of the text");
    }
    return Split(rest.substr(1, end - 1));
  }
  return Split(
      rest.substr(0, std::min(rest.find_first_of("\n)"), rest.size())));
}

void ConfigText::Fail(std::string_view key, const std::string& expected,
                      const std::string& value) const {
  throw InputError(fmt::format("{}: {}: expected {}, found {}", name_, key,
                               expected, value));
}

}  // namespace acplan::problems
