#include "cli/report/page.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/pictures/picture.h"
#include "cli/report/page_parts.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using nlohmann::ordered_json;

// Escapes in all texts what a browser does not show.
void ShowUnseen(ordered_json& data) {
  if (data.is_string()) {
    data = graph::ShowUnseen(data.get_ref<const std::string&>());
  } else if (data.is_array()) {
    for (ordered_json& value : data) ShowUnseen(value);
  } else if (data.is_object()) {
    ordered_json::object_t entries;
    for (auto& [key, value] : data.get_ref<ordered_json::object_t&>()) {
      ShowUnseen(value);
      entries.emplace_back(graph::ShowUnseen(key), std::move(value));
    }
    data.get_ref<ordered_json::object_t&>().swap(entries);
  }
}

std::string ScriptOf(PageKind kind) {
  switch (kind) {
    case PageKind::kSearch:
      return std::string(SearchScript());
    case PageKind::kLengths:
      return fmt::format("{}{}", DeviceScript(), LengthsScript());
    case PageKind::kStep:
      break;
  }
  return fmt::format("{}{}{}", StepScript(), DeviceScript(), ModulesScript());
}

}  // namespace

void RequirePageName(const std::string& name) {
  if (name.empty()) {
    throw InputError("-o: expected the name of the page, found none");
  }
  const std::string ending = std::filesystem::path(name).extension().string();
  if (!ending.empty() && ending != ".html" && ending != ".htm") {
    throw InputError(fmt::format(
        "-o: expected a name that ends with .html, found {}; a chart of the "
        "page can be saved as SVG there",
        graph::Quoted(name, 100)));
  }
}

std::string JsonForScript(const nlohmann::ordered_json& data) {
  using Handler = nlohmann::ordered_json::error_handler_t;
  const std::string text = data.dump(-1, ' ', true, Handler::replace);
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "\\u003c";
        break;
      case '>':
        escaped += "\\u003e";
        break;
      case '&':
        escaped += "\\u0026";
        break;
      case '\x7f':
        escaped += "\\u007f";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string ReportPage(PageKind kind, std::string_view title,
                       const nlohmann::ordered_json& data) {
  // The library makes functions of the expressions in its specifications.
  constexpr std::string_view kPolicy =
      "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
      "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
      "form-action 'none'";
  const std::string shown_title = Escaped(title);
  ordered_json texts = data;
  ShowUnseen(texts);
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n"
      "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n"
      "<header><h1>{}</h1><p class=\"quiet\" id=\"facts\"></p></header>\n"
      "<main><noscript>This page draws its charts with a script, which this "
      "browser does not run.</noscript></main>\n"
      "<script type=\"application/json\" id=\"data\">{}</script>\n"
      "<!--\n{}-->\n<script>\n{}</script>\n<script>\n{}{}</script>\n"
      "</body>\n</html>\n",
      kPolicy, shown_title, PageStyle(), shown_title, JsonForScript(texts),
      LibraryLicense(), LibraryScript(), PageScript(), ScriptOf(kind));
}

}  // namespace acplan::cli
