#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cli/command.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

namespace {

// Runs `python -m acplan`, or says which package is missing.
constexpr const char* kScript = R"(
import sys
sys.argv[0] = 'acplan torch'
try:
    from acplan.__main__ import main
except ModuleNotFoundError as error:
    print(f'acplan: torch: {sys.executable} has no package {error.name}', file=sys.stderr)
    sys.exit(2)
sys.exit(main())
)";

// Returns the Python beside the program, as a wheel installs both, or that of PATH.
std::string PythonName() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    const std::filesystem::path python = program.parent_path() / "python3";
    if (::access(python.c_str(), X_OK) == 0) return python;
  }
  return "python3";
}

}  // namespace

int RunTorch(const std::vector<std::string>& arguments) {
  const std::string python = PythonName();
  std::vector<std::string> all = {python, "-c", kScript};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execvp(python.c_str(), pointers.data());
  throw InputError(
      fmt::format("torch: cannot run {}: {}", python, std::strerror(errno)));
}

Command AddTorchCommand(CLI::App& program) {
  CLI::App* app = program.add_subcommand(
      "torch", "Trace, plan and verify a PyTorch model: python -m acplan");
  app->footer("Example:\n  acplan torch --help");
  return {app, [](const Terminal&) { return RunTorch({}); }};
}

}  // namespace acplan::cli
