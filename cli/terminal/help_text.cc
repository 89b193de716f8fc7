#include "cli/terminal/help_text.h"

#include <algorithm>
#include <vector>

#include "cli/terminal/text.h"

namespace acplan::cli {
namespace {

// Returns the column where the description of a flag or a command begins: after
// the first two spaces that follow a word. Without them, two columns into the
// line.
size_t DescriptionOf(std::string_view line) {
  const size_t word = std::min(line.find_first_not_of(' '), line.size());
  // This is a description whose flag is on the line above.
  if (word > kHelpColumns / 4) return word;
  const size_t gap = line.find("  ", word);
  if (word == 0 || gap == std::string_view::npos) return word + 2;
  return std::min(line.find_first_not_of(' ', gap), line.size());
}

// Breaks a line at spaces after `indent`; `end` stands at each break.
std::string Broken(std::string_view line, size_t indent, std::string_view end) {
  std::string text;
  std::string margin;
  while (TextWidth(line) + margin.size() > kHelpColumns) {
    const size_t most = kHelpColumns - margin.size() - end.size();
    const size_t first = margin.empty() ? indent : 0;
    size_t space = line.rfind(' ', most);
    if (space == std::string_view::npos || space <= first) {
      space = line.find(' ', std::max(first, most));
    }
    if (space == std::string_view::npos) break;
    text +=
        margin + std::string(line.substr(0, space)) + std::string(end) + "\n";
    line.remove_prefix(space + 1);
    margin = std::string(indent, ' ');
  }
  return text + margin + std::string(line) + "\n";
}

}  // namespace

std::string WithinHelpColumns(std::string_view help) {
  std::string text;
  bool is_example = false;
  while (!help.empty()) {
    const size_t end = std::min(help.find('\n'), help.size());
    const std::string_view line = help.substr(0, end);
    help.remove_prefix(std::min(end + 1, help.size()));
    if (is_example && line.starts_with("  ")) {
      text += Broken(line, 6, " \\");
      continue;
    }
    is_example = line == "Example:" || line == "Examples:";
    text += Broken(line, DescriptionOf(line), "");
  }
  return text;
}

}  // namespace acplan::cli
