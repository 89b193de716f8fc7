#include "graph/allocator/config_tokens.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <system_error>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {

ConfigTokens::ConfigTokens(std::string_view text, std::string_view what)
    : what_(what) {
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) tokens_.push_back(std::move(word));
    word.clear();
  };
  for (const char c : text) {
    if (c == ',' || c == ':' || c == '[' || c == ']') {
      end_word();
      tokens_.emplace_back(1, c);
    } else if (c != ' ' && (c < '\t' || c > '\r')) {
      word += c;
    }
  }
  end_word();
}

void ConfigTokens::Fail(const std::string& message) const {
  throw InputError(fmt::format("{}: {}", what_, message));
}

void ConfigTokens::FailOption(const std::string& message) const {
  Fail(fmt::format("{}: {}", option_, message));
}

const std::string& ConfigTokens::Option() { return option_ = tokens_[at_++]; }

void ConfigTokens::Expect(std::string_view token) {
  if (IsDone()) FailOption(fmt::format("expected \"{}\" at the end", token));
  if (!IsNext(token)) {
    FailOption(
        fmt::format("expected \"{}\", found {}", token, Quoted(tokens_[at_])));
  }
  ++at_;
}

const std::string& ConfigTokens::Value() {
  if (IsDone()) FailOption("no value");
  return tokens_[at_++];
}

int64_t ConfigTokens::Whole() {
  const std::string& token = Value();
  int64_t value = 0;
  const char* const end = token.data() + token.size();
  const auto [stop, error] = std::from_chars(token.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    FailOption(fmt::format("expected a whole number, found {}", Quoted(token)));
  }
  return value;
}

double ConfigTokens::Number() { return NumberIn(Value()); }

double ConfigTokens::NumberIn(std::string_view token) const {
  double value = 0;
  const char* const end = token.data() + token.size();
  const auto [stop, error] = std::from_chars(token.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) {
    FailOption(fmt::format("expected a number, found {}", Quoted(token)));
  }
  return value;
}

bool ConfigTokens::Flag() {
  const std::string& token = Value();
  if (token != "True" && token != "False") {
    FailOption(fmt::format("expected True or False, found {}", Quoted(token)));
  }
  return token == "True";
}

void ConfigTokens::Skip() {
  if (Value() != "[") return;
  while (Value() != "]") {
  }
}

}  // namespace acplan::graph
