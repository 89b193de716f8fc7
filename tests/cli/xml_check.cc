#include "tests/cli/xml_check.h"

#include <fmt/format.h>

#include <array>
#include <regex>
#include <set>
#include <vector>

namespace acplan::cli {

namespace {

bool HasOnlyKnownEntities(std::string_view text) {
  for (size_t place = text.find('&'); place != std::string_view::npos;
       place = text.find('&', place + 1)) {
    const std::string_view entity =
        text.substr(place, text.find(';', place) - place);
    if (entity != "&amp" && entity != "&lt" && entity != "&gt" &&
        entity != "&quot")
      return false;
  }
  return true;
}

// Returns a description of the fault between "<" and ">".
std::string TagFault(const std::string& tag, std::vector<std::string>& open) {
  static const std::regex kTag(
      R"re(([A-Za-z][\w-]*)((\s+[A-Za-z][\w-]*="[^"<]*")*)\s*(/?))re");
  static const std::regex kName(R"re(([\w-]+)="[^"]*")re");
  if (tag.starts_with('/')) {
    if (open.empty() || tag.substr(1) != open.back())
      return "closes what is not open: <" + tag + ">";
    open.pop_back();
    return "";
  }
  std::smatch parts;
  if (!std::regex_match(tag, parts, kTag)) return "is no tag: <" + tag + ">";
  const std::string attributes = parts[2];
  std::set<std::string> names;
  for (std::sregex_iterator name(attributes.begin(), attributes.end(), kName);
       name != std::sregex_iterator(); ++name) {
    if (!names.insert((*name)[1]).second)
      return "repeats an attribute: <" + tag + ">";
  }
  if (!HasOnlyKnownEntities(attributes)) return "has an entity: " + tag;
  if (parts[4].length() == 0) open.push_back(parts[1]);
  return "";
}

}  // namespace

std::string XmlFault(std::string_view text) {
  constexpr std::string_view kDoctype = "<!DOCTYPE html>\n";
  constexpr std::string_view kCdata = "<![CDATA[";
  if (text.starts_with(kDoctype)) text.remove_prefix(kDoctype.size());
  std::vector<std::string> open;
  bool has_root = false;
  while (!text.empty()) {
    const size_t next = text.find('<');
    const std::string_view before = text.substr(0, next);
    if (!HasOnlyKnownEntities(before) ||
        before.find('>') != std::string_view::npos)
      return fmt::format("is no text: {}", before);
    if (open.empty() && before.find_first_not_of('\n') != before.npos)
      return fmt::format("is outside of the root: {}", before);
    if (next == std::string_view::npos) break;
    text.remove_prefix(next);
    const bool is_cdata = text.starts_with(kCdata);
    const std::string_view end = is_cdata ? "]]>" : ">";
    const size_t close = text.find(end);
    if (close == std::string_view::npos) return "is not closed";
    if (!is_cdata) {
      if (open.empty() && has_root) return "has a second root";
      has_root = true;
      const std::string fault =
          TagFault(std::string(text.substr(1, close - 1)), open);
      if (!fault.empty()) return fault;
    }
    text.remove_prefix(close + end.size());
  }
  return open.empty() ? "" : "does not close <" + open.back() + ">";
}

}  // namespace acplan::cli
