#include <fmt/format.h>
#include <zlib.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.h"
#include "solver/cbc_version.h"

namespace acplan::cli {

namespace {

constexpr const char* kVersion = "acplan " ACPLAN_VERSION;

// Returns the details that a report of a defect should have.
std::string VerboseVersion() {
#ifdef __clang__
  const std::string compiler = fmt::format(
      "clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  const std::string compiler = fmt::format("gcc {}.{}.{}", __GNUC__,
                                           __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
  return fmt::format(
      "{}\n{}, {} build\n{}\nnlohmann_json {}.{}.{}, CLI11 {}, fmt {}.{}.{}, "
      "zlib {}",
      kVersion, compiler, ACPLAN_BUILD_TYPE, solver::CoinOrVersions(),
      NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
      NLOHMANN_JSON_VERSION_PATCH, CLI11_VERSION, FMT_VERSION / 10000,
      FMT_VERSION / 100 % 100, FMT_VERSION % 100, zlibVersion());
}

}  // namespace

Command AddVersionCommand(CLI::App& program) {
  CLI::App* app =
      program
          .add_subcommand(
              "version",
              "Print the version; with -v also compiler and libraries")
          ->alias("v");
  app->footer("Example:\n  acplan version --verbose");
  program.set_version_flag("--version", kVersion, "Print the version and exit");
  return {app, [](const Terminal& terminal) {
            terminal.Report(ResultLevel::kInfo,
                            terminal.verbose() ? VerboseVersion() : kVersion);
            return kExitOk;
          }};
}

}  // namespace acplan::cli
