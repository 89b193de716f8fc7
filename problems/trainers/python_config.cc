#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "problems/trainers/config_formats.h"
#include "problems/trainers/python_tokens.h"

// Every place that sets a value is found by its form alone, NAME = VALUE or "KEY": VALUE in
// braces, so a value inside of another one's call is found twice: by itself, and as a part of
// that one. No expression is computed; one that is no literal stays visible as such, so that
// a reader that needs its value refuses it.

namespace acplan::problems {

using nlohmann::json;

namespace {

using Kind = PythonTokenKind;

// Expressions are not read beyond this depth of brackets.
constexpr int kMostDepth = 100;

// Reads the expression at a token.
class Expressions {
 public:
  explicit Expressions(const std::vector<PythonToken>& tokens)
      : tokens_(tokens) {}

  struct Result {
    json value;
    size_t end = 0;  // the token after it
  };

  Result Read(size_t begin, int depth = 0) const {
    if (depth < kMostDepth) {
      Result result = ReadPrimary(begin, depth);
      if (result.end > begin && EndsExpression(result.end)) return result;
    }
    std::string text;
    size_t end = begin;
    while (!EndsExpression(end)) {
      const size_t next = After(end);
      for (; end < next; ++end) {
        if (text.size() < 100) text += tokens_[end].text;
      }
    }
    return {{{"?", text}}, end};
  }

 private:
  bool EndsExpression(size_t k) const {
    const PythonToken& token = tokens_[k];
    if (token.kind == Kind::kLineEnd) return true;
    return token.kind == Kind::kSign &&
           (token.text == "," || token.text == ")" || token.text == "]" ||
            token.text == "}" || token.text == ":" || token.text == ";");
  }

  // Returns the token after this one, or after the bracket that it opens.
  size_t After(size_t k) const {
    const PythonToken& token = tokens_[k];
    const bool is_open = token.Is("(") || token.Is("[") || token.Is("{");
    return is_open ? token.partner + 1 : k + 1;
  }

  Result ReadPrimary(size_t k, int depth) const {
    const PythonToken& token = tokens_[k];
    switch (token.kind) {
      case Kind::kText:
        return ReadText(k);
      case Kind::kNumber:
        return {Number(token.text), k + 1};
      case Kind::kName:
        return ReadName(k, depth);
      case Kind::kSign:
        if (token.text == "-" && tokens_[k + 1].kind == Kind::kNumber) {
          return {Number("-" + tokens_[k + 1].text), k + 2};
        }
        if (token.text == "[" || token.text == "(") return ReadList(k, depth);
        if (token.text == "{") return ReadBraces(k, depth);
        break;
      case Kind::kLineEnd:
        break;
    }
    return {nullptr, k};
  }

  Result ReadText(size_t k) const {
    std::string text;
    for (; tokens_[k].kind == Kind::kText; ++k) text += tokens_[k].text;
    return {text, k};
  }

  static json Number(const std::string& text) {
    int64_t whole = 0;
    const char* end = text.data() + text.size();
    const auto result = std::from_chars(text.data(), end, whole);
    if (result.ec == std::errc() && result.ptr == end) return whole;
    return text;
  }

  Result ReadName(size_t k, int depth) const {
    if (tokens_[k].text == "True") return {true, k + 1};
    if (tokens_[k].text == "False") return {false, k + 1};
    if (tokens_[k].text == "None") return {nullptr, k + 1};
    std::string name = tokens_[k++].text;
    while (tokens_[k].Is(".") && tokens_[k + 1].kind == Kind::kName) {
      name += "." + tokens_[k + 1].text;
      k += 2;
    }
    if (!tokens_[k].Is("(")) return {name, k};
    json call = json::object();
    const size_t end = tokens_[k].partner;
    for (++k; k < end;) {
      const bool is_keyword =
          tokens_[k].kind == Kind::kName && tokens_[k + 1].Is("=");
      Result argument = Read(is_keyword ? k + 2 : k, depth + 1);
      if (is_keyword) call[tokens_[k].text] = std::move(argument.value);
      k = std::max(argument.end, k) + 1;
    }
    call[kCallKey] = name;
    return {call, end + 1};
  }

  Result ReadList(size_t k, int depth) const {
    const bool is_list = tokens_[k].text == "[";
    const size_t end = tokens_[k].partner;
    json list = json::array();
    bool has_comma = false;
    for (++k; k < end;) {
      Result item = Read(k, depth + 1);
      list.push_back(std::move(item.value));
      has_comma = has_comma || tokens_[item.end].Is(",");
      k = std::max(item.end, k) + 1;
    }
    const bool is_in_brackets = !is_list && list.size() == 1 && !has_comma;
    return {is_in_brackets ? json(list.front()) : list, end + 1};
  }

  Result ReadBraces(size_t k, int depth) const {
    const size_t end = tokens_[k].partner;
    json table = json::object();
    json set = json::array();
    for (++k; k < end;) {
      Result item = Read(k, depth + 1);
      size_t next = item.end;
      if (tokens_[next].Is(":")) {
        Result value = Read(next + 1, depth + 1);
        next = value.end;
        const bool is_text = item.value.is_string();
        if (is_text) table[item.value.get<std::string>()] = value.value;
      } else {
        set.push_back(std::move(item.value));
      }
      k = std::max(next, k) + 1;
    }
    return {set.empty() ? table : set, end + 1};
  }

  const std::vector<PythonToken>& tokens_;
};

struct Function {
  size_t begin = 0;  // its first token after the parameters
  size_t end = 0;
};

class Finder {
 public:
  Finder(const std::vector<PythonToken>& tokens, std::string name)
      : tokens_(tokens), name_(std::move(name)), expressions_(tokens) {
    for (size_t k = 0; k + 2 < tokens_.size(); ++k) {
      if (!IsDefinition(k)) continue;
      const size_t begin = tokens_[k + 2].partner + 1;
      functions_[tokens_[k + 1].text] = {begin, EndOfBlock(k, begin)};
    }
  }

  ParsedConfig Find(std::string_view function) && {
    for (const PythonToken& token : tokens_) {
      if (token.kind == Kind::kName) parsed_.words.insert(token.text);
    }
    if (function.empty()) {
      Scan({0, tokens_.size()});
    } else {
      is_sequence_ = true;
      Run(std::string(function));
    }
    return std::move(parsed_);
  }

 private:
  bool IsDefinition(size_t k) const {
    return tokens_[k].IsName("def") && tokens_[k + 1].kind == Kind::kName &&
           tokens_[k + 2].Is("(");
  }

  // Returns the first token after the block of the definition at `k`.
  size_t EndOfBlock(size_t k, size_t begin) const {
    size_t first = k;
    while (tokens_[first].indent < 0 && first > 0) --first;
    for (size_t end = begin; end < tokens_.size(); ++end) {
      const int indent = tokens_[end].indent;
      if (indent >= 0 && indent <= tokens_[first].indent) return end;
    }
    return tokens_.size();
  }

  // Finds the values of a function, after those of the functions that it calls.
  void Run(const std::string& function) {
    const auto entry = functions_.find(function);
    if (entry == functions_.end()) {
      std::vector<std::string> names;
      for (const auto& [name, block] : functions_) names.push_back(name);
      const auto near = graph::NearestNames(function, names, 1);
      throw InputError(fmt::format(
          "{}: expected a file with the function {}{}", name_,
          graph::Quoted(function),
          near.empty() ? "" : "; nearest: " + graph::OneLine(near.front())));
    }
    if (!visited_.insert(function).second) return;
    const Function block = entry->second;
    for (size_t k = block.begin; k + 1 < block.end; ++k) {
      const bool is_call =
          tokens_[k].kind == Kind::kName && tokens_[k + 1].Is("(") &&
          functions_.contains(tokens_[k].text) && visited_.size() < 100;
      if (is_call) Run(tokens_[k].text);
    }
    Scan(block);
  }

  void Scan(Function block) {
    for (size_t k = block.begin; k + 2 < block.end; ++k) {
      if (IsDefinition(k)) k = tokens_[k + 2].partner;  // past its parameters
      const PythonToken& token = tokens_[k];
      if (token.kind == Kind::kName && tokens_[k + 1].Is("=")) {
        Record(token.text, k + 2);
      } else if (token.kind == Kind::kText && tokens_[k + 1].Is(":") &&
                 token.partner != kNoBracket &&
                 tokens_[token.partner].Is("{")) {
        Record(token.text, k + 2);
      } else if (token.kind == Kind::kName && token.indent >= 0 &&
                 tokens_[k + 1].Is(":")) {
        RecordAnnotated(k);
      }
    }
  }

  // NAME: TYPE = VALUE.
  void RecordAnnotated(size_t k) {
    const std::string& name = tokens_[k].text;
    for (k += 2; tokens_[k].kind != Kind::kLineEnd; ++k) {
      if (tokens_[k].partner == kNoBracket && tokens_[k].Is("=")) {
        Record(name, k + 1);
        return;
      }
    }
  }

  void Record(const std::string& key, size_t place) {
    json value = expressions_.Read(place).value;
    const auto entry = parsed_.root.find(key);
    if (entry == parsed_.root.end()) {
      parsed_.root[key] = std::move(value);
    } else if (is_sequence_) {
      *entry = std::move(value);
    } else if (*entry != value) {
      parsed_.other_values[key].push_back(std::move(value));
    }
  }

  const std::vector<PythonToken>& tokens_;
  const std::string name_;
  const Expressions expressions_;
  std::map<std::string, Function> functions_;
  std::set<std::string> visited_;
  ParsedConfig parsed_;
  bool is_sequence_ = false;
};

}  // namespace

ParsedConfig ParsePython(std::string_view text, const std::string& name,
                         std::string_view function) {
  const std::vector<PythonToken> tokens = PythonTokens(text, name);
  return Finder(tokens, name).Find(function);
}

}  // namespace acplan::problems
