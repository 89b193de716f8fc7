#include <fmt/format.h>

#include "cli/command.h"

namespace acplan::cli {

Command AddVersionCommand(CLI::App& program) {
  CLI::App* app =
      program.add_subcommand("version", "Print the version")->alias("v");
  app->footer("Example:\n  acplan version");
  program.set_version_flag("--version", "acplan " ACPLAN_VERSION,
                           "Print the version and exit");
  return {app, [](const Terminal& terminal) {
            terminal.Report(ResultLevel::kInfo, "acplan " ACPLAN_VERSION);
            return kExitOk;
          }};
}

}  // namespace acplan::cli
