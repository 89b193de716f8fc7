#include "cli/input/data_folder.h"

#include <system_error>

namespace acplan::cli {

std::filesystem::path DataFolder() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path installed =
      program.parent_path().parent_path() / ACPLAN_INSTALLED_DATA;
  return !error && fs::is_directory(installed, error) ? installed
                                                      : ACPLAN_SOURCE_DATA;
}

std::filesystem::path DevicesFile() {
  return DataFolder() / "devices" / "memory.csv";
}

std::filesystem::path LinksFile() {
  return DataFolder() / "devices" / "links.csv";
}

std::filesystem::path RunErrorsFile() {
  return DataFolder() / "training" / "errors.csv";
}

std::filesystem::path SystemsFile(const std::string& path) {
  return path.empty() ? DataFolder() / "training" / "systems.json"
                      : std::filesystem::path(path);
}

}  // namespace acplan::cli
