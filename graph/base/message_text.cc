#include "graph/base/message_text.h"

#include <nlohmann/json.hpp>

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

std::string EscapeDelete(std::string text) {
  for (size_t at = 0; (at = text.find('\x7f', at)) != std::string::npos;)
    text.replace(at, 1, "\\u007f");
  return text;
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
  return EscapeDelete(result);
}

std::string Quoted(std::string_view text, size_t most) {
  const std::string_view cut = Cut(text, most);
  return EscapeDelete('"' + Escaped(cut) +
                      (cut.size() < text.size() ? "...\"" : "\""));
}

}  // namespace acplan::graph
