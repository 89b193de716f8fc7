#include "cli/input/file_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

bool HasExtension(const std::string& name,
                  const std::vector<std::string>& extensions) {
  return std::ranges::any_of(extensions, [&](const std::string& extension) {
    return name.ends_with(extension);
  });
}

}  // namespace

void RequireJsonName(const std::string& path) {
  if (!HasExtension(path, {".json", ".json.gz"})) {
    throw InputError(
        fmt::format("{}: expected a name that ends in .json or "
                    ".json.gz",
                    graph::OneLine(path, 400)));
  }
}

void RequireExtension(const std::string& output,
                      const std::vector<std::string>& extensions) {
  if (!HasExtension(output, extensions)) {
    throw InputError(fmt::format("{}: expected a name that ends in {}",
                                 graph::OneLine(output, 400),
                                 fmt::join(extensions, ", ")));
  }
}

std::string FileStem(const std::string& path) {
  std::string name = std::filesystem::path(path).filename().string();
  return name.substr(0, name.find(".json"));
}

}  // namespace acplan::cli
