#include "problems/trainers/python_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "graph/base/input_error.h"

namespace acplan::problems {
namespace {

bool IsOfName(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool IsDigit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

bool IsTextPrefix(std::string_view name) {
  return name.size() <= 2 && std::ranges::all_of(name, [](char c) {
           return std::string_view("rRbBfFuU").find(c) !=
                  std::string_view::npos;
         });
}

class Tokenizer {
 public:
  Tokenizer(std::string_view text, const std::string& name)
      : text_(text), name_(name) {}

  std::vector<PythonToken> Split() && {
    while (place_ < text_.size()) Step();
    if (!open_.empty()) {
      const PythonToken& bracket = tokens_[open_.back()];
      Fail(bracket.line, "a bracket that closes \"" + bracket.text + "\"");
    }
    Add(PythonTokenKind::kLineEnd, "");
    return std::move(tokens_);
  }

 private:
  void Step() {
    const char c = text_[place_];
    if (c == '\n') {
      if (open_.empty()) Add(PythonTokenKind::kLineEnd, "");
      EndLine();
    } else if (c == '\\' && place_ + 1 < text_.size()) {
      // A line that goes on in the next one.
      const size_t end = text_[place_ + 1] == '\r' ? 2 : 1;
      place_ += end;
      if (place_ < text_.size() && text_[place_] == '\n') EndLine(false);
    } else if (c == '#') {
      place_ = std::min(text_.find('\n', place_), text_.size());
    } else if (c == '"' || c == '\'') {
      AddText();
    } else if (IsDigit(c) || (c == '.' && place_ + 1 < text_.size() &&
                              IsDigit(text_[place_ + 1]))) {
      AddNumber();
    } else if (IsOfName(c)) {
      AddName();
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++place_;
    } else {
      AddSign();
    }
  }

  void EndLine(bool is_statement = true) {
    ++place_;
    ++line_;
    if (!is_statement || !open_.empty()) return;
    line_begin_ = place_;
  }

  void Add(PythonTokenKind kind, std::string text) {
    PythonToken token{.kind = kind,
                      .text = std::move(text),
                      .line = line_,
                      .partner = open_.empty() ? kNoBracket : open_.back()};
    const bool is_first = line_begin_ != std::string_view::npos &&
                          kind != PythonTokenKind::kLineEnd;
    if (is_first) {
      token.indent = static_cast<int>(token_begin_ - line_begin_);
      line_begin_ = std::string_view::npos;
    }
    tokens_.push_back(std::move(token));
  }

  void AddName() {
    token_begin_ = place_;
    while (place_ < text_.size() && IsOfName(text_[place_])) ++place_;
    const std::string_view name =
        text_.substr(token_begin_, place_ - token_begin_);
    const bool is_prefix = place_ < text_.size() &&
                           (text_[place_] == '"' || text_[place_] == '\'') &&
                           IsTextPrefix(name);
    if (!is_prefix) Add(PythonTokenKind::kName, std::string(name));
  }

  void AddNumber() {
    token_begin_ = place_;
    while (place_ < text_.size() &&
           (IsOfName(text_[place_]) || text_[place_] == '.' ||
            ((text_[place_] == '-' || text_[place_] == '+') &&
             (text_[place_ - 1] == 'e' || text_[place_ - 1] == 'E')))) {
      ++place_;
    }
    std::string number(text_.substr(token_begin_, place_ - token_begin_));
    std::erase(number, '_');
    Add(PythonTokenKind::kNumber, std::move(number));
  }

  void AddText() {
    token_begin_ = place_;
    const int begin_line = line_;
    const char quote = text_[place_];
    const std::string three(3, quote);
    const bool is_long = text_.substr(place_).starts_with(three);
    place_ += is_long ? 3 : 1;
    std::string value;
    while (true) {
      if (place_ >= text_.size() || (!is_long && text_[place_] == '\n')) {
        Fail(begin_line, "a text that ends");
      }
      if (is_long ? text_.substr(place_).starts_with(three)
                  : text_[place_] == quote) {
        break;
      }
      if (text_[place_] == '\\' && place_ + 1 < text_.size()) ++place_;
      if (text_[place_] == '\n') ++line_;
      value += text_[place_++];
    }
    place_ += is_long ? 3 : 1;
    Add(PythonTokenKind::kText, std::move(value));
    tokens_.back().line = begin_line;
  }

  void AddSign() {
    token_begin_ = place_;
    const char c = text_[place_++];
    if (c == ')' || c == ']' || c == '}') return Close(c);
    std::string sign(1, c);
    constexpr std::string_view kBeforeEquals = "=!<>:+-*/%&|^@";
    const bool is_pair = place_ < text_.size() && text_[place_] == '=' &&
                         kBeforeEquals.find(c) != std::string_view::npos;
    if (is_pair) {
      sign += '=';
      ++place_;
    }
    Add(PythonTokenKind::kSign, std::move(sign));
    if (c == '(' || c == '[' || c == '{') open_.push_back(tokens_.size() - 1);
  }

  void Close(char c) {
    const char opening = c == ')' ? '(' : c == ']' ? '[' : '{';
    if (open_.empty() || tokens_[open_.back()].text.front() != opening) {
      Fail(line_, fmt::format("an opening bracket before \"{}\"", c));
    }
    tokens_[open_.back()].partner = tokens_.size();
    open_.pop_back();
    Add(PythonTokenKind::kSign, std::string(1, c));
  }

  [[noreturn]] void Fail(int line, const std::string& expected) const {
    throw InputError(
        fmt::format("{}: line {}: expected {}", name_, line, expected));
  }

  std::string_view text_;
  const std::string& name_;
  std::vector<PythonToken> tokens_;
  std::vector<size_t> open_;  // brackets
  size_t place_ = 0;
  size_t token_begin_ = 0;
  // Where the line of a statement begins, until its first token is there; then npos.
  size_t line_begin_ = 0;
  int line_ = 1;
};

}  // namespace

std::vector<PythonToken> PythonTokens(std::string_view text,
                                      const std::string& name) {
  return Tokenizer(text, name).Split();
}

}  // namespace acplan::problems
