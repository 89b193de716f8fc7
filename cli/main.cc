#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/terminal.h"
#include "graph/input_error.h"
#include "graph/message_text.h"

namespace acplan::cli {

namespace {

struct GlobalFlags {
  std::string color = "auto";
  bool quiet = false;
  bool verbose = false;
};

ColorMode ParseColor(const std::string& name) {
  if (name == "auto") return ColorMode::kAuto;
  if (name == "always") return ColorMode::kAlways;
  if (name == "never") return ColorMode::kNever;
  throw InputError(
      fmt::format("--color: expected auto, always or never, found '{}'", name));
}

// Global flags may stand before or after the command.
void AddGlobalFlags(CLI::App& app, GlobalFlags& flags) {
  app.add_option("--color", flags.color, "auto (default), always or never")
      ->type_name("WHEN");
  app.add_flag("-q,--quiet", flags.quiet, "no warnings, no progress");
  app.add_flag("-v,--verbose", flags.verbose,
               "log the progress of long searches, terminal or not");
}

int Complain(std::string_view message, int exit_code) {
  fmt::print(stderr, "acplan: {}\n", message);
  return exit_code;
}

int Run(int argc, char** argv) {
  CLI::App program(
      "acplan: optimal activation checkpointing under a memory budget");
  program.name("acplan");
  GlobalFlags global;
  AddGlobalFlags(program, global);
  program.footer(
      "Example:\n  acplan plan data/profiles/gpt2_small.json.gz --budget "
      "10GiB\n"
      "'acplan COMMAND --help' explains a command.");
  const std::vector<Command> commands = {
      AddPlanCommand(program),    AddBaselineCommand(program),
      AddCompareCommand(program), AddCheckCommand(program),
      AddTreeCommand(program),    AddCompletionCommand(program),
      AddVersionCommand(program),
  };
  for (const Command& command : commands) AddGlobalFlags(*command.app, global);
  program.require_subcommand(0, 1);

  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);
    return Complain(
        graph::OneLine(error.what(), 400) + " (see 'acplan --help')",
        kExitBadInput);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) {
      return command.run(
          Terminal(ParseColor(global.color), global.quiet, global.verbose));
    }
  }
  fmt::print(stderr, "{}", program.help());
  return kExitBadInput;
}

}  // namespace

}  // namespace acplan::cli

int main(int argc, char** argv) {
  using acplan::cli::Complain;
  try {
    return acplan::cli::Run(argc, argv);
  } catch (const acplan::InputError& error) {
    return Complain(error.what(), acplan::cli::kExitBadInput);
  } catch (const std::bad_alloc&) {
    return Complain("out of memory", acplan::cli::kExitFailure);
  } catch (const std::exception& error) {
    return Complain(error.what(), acplan::cli::kExitFailure);
  }
}
