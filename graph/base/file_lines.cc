#include "graph/base/file_lines.h"

#include <fmt/format.h>

#include <string>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

constexpr size_t kMostLine = size_t{1} << 26;

}  // namespace

void ForEachLine(const std::filesystem::path& path,
                 const std::function<void(std::string_view)>& use) {
  const auto give = [&](std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    use(line);
  };
  std::string begun;  // the start of a line that continues in the next piece
  ReadPieces(path, [&](std::string_view piece) {
    for (size_t end = piece.find('\n'); end != std::string_view::npos;
         end = piece.find('\n')) {
      if (begun.empty()) {
        give(piece.substr(0, end));
      } else {
        begun += piece.substr(0, end);
        give(begun);
        begun.clear();
      }
      piece.remove_prefix(end + 1);
    }
    begun += piece;
    if (begun.size() <= kMostLine) return true;
    throw InputError(fmt::format(
        "{}: expected lines of at most {} bytes, found a longer one",
        OneLine(path.string(), 400), kMostLine));
  });
  if (!begun.empty()) give(begun);
}

}  // namespace acplan::graph
