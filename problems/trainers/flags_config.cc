#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "problems/trainers/config_formats.h"

namespace acplan::problems {

using nlohmann::json;

namespace {

// Splits a shell script into words; a word in quotes stays whole. "\n" and ";" end a command
// and become words, a backslash before the end of a line joins it with the next, and the
// parentheses of an array are between its words.
std::vector<std::string> WordsOf(std::string_view text,
                                 const std::string& name) {
  std::vector<std::string> words;
  std::string word;
  bool is_word = false;
  bool is_array = false;
  const auto end_word = [&] {
    if (is_word) words.push_back(std::exchange(word, {}));
    is_word = false;
  };
  for (size_t k = 0; k < text.size(); ++k) {
    const char c = text[k];
    if (c == '\'' || c == '"') {
      const size_t end = text.find(c, k + 1);
      if (end == std::string_view::npos) {
        throw InputError(fmt::format("{}: expected a closing {}", name, c));
      }
      word += text.substr(k + 1, end - k - 1);
      is_word = true;
      k = end;
    } else if (c == '\\' && k + 1 < text.size()) {
      ++k;
      if (text[k] == '\r' && k + 1 < text.size() && text[k + 1] == '\n') ++k;
      if (text[k] == '\n') continue;
      word += text[k];
      is_word = true;
    } else if (c == '#' && !is_word) {
      k = std::min(text.find('\n', k), text.size()) - 1;
    } else if (c == '\n' || c == ';') {
      end_word();
      words.emplace_back("\n");
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      end_word();
    } else if ((c == '(' && word.ends_with('=')) || (c == ')' && is_array)) {
      is_array = c == '(';
      end_word();
    } else {
      word += c;
      is_word = true;
    }
  }
  end_word();
  return words;
}

json ValueOf(const std::string& text, const std::string& name) {
  if (text.starts_with('{') || text.starts_with('[')) {
    return graph::ParseJson(text, name);
  }
  if (text == "true" || text == "True") return true;
  if (text == "false" || text == "False") return false;
  if (text == "None" || text == "null") return nullptr;
  return text;
}

// Sets a value at a path of keys between dots.
void Set(json& root, std::string_view path, json value) {
  json* place = &root;
  while (true) {
    const size_t dot = std::min(path.find('.'), path.size());
    const std::string key(path.substr(0, dot));
    if (!place->is_object()) *place = json::object();
    place = &(*place)[key];
    if (dot == path.size()) break;
    path.remove_prefix(dot + 1);
  }
  *place = std::move(value);
}

bool IsFlag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--");
}

}  // namespace

ParsedConfig ParseFlags(std::string_view text, const std::string& name) {
  ParsedConfig parsed;
  json& root = parsed.root;
  const std::vector<std::string> words = WordsOf(text, name);
  for (size_t k = 0; k < words.size(); ++k) {
    if (!IsFlag(words[k])) {
      parsed.words.insert(words[k]);
      continue;
    }
    const std::string_view flag = std::string_view(words[k]).substr(2);
    const size_t equals = flag.find('=');
    std::string key(flag.substr(0, equals));
    std::ranges::replace(key, '-', '_');
    if (std::ranges::count(key, '.') > 20) continue;
    if (equals != std::string_view::npos) {
      Set(root, key, ValueOf(std::string(flag.substr(equals + 1)), name));
      continue;
    }
    json values = json::array();
    while (k + 1 < words.size() && !IsFlag(words[k + 1]) &&
           words[k + 1] != "\n") {
      values.push_back(ValueOf(words[++k], name));
    }
    if (!values.empty()) {
      Set(root, key, values.size() == 1 ? values.front() : values);
    } else if (key.starts_with("no_")) {
      Set(root, key.substr(3), false);
    } else {
      Set(root, key, true);
    }
  }
  return parsed;
}

}  // namespace acplan::problems
