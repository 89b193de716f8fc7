#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/log_flags.h"
#include "cli/terminal/terminal.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "problems/plan_options.h"

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
  WriteToStderr(fmt::format("acplan: {}\n", graph::OneLine(message, 4000)));
  return exit_code;
}

const CLI::App& ChosenApp(const CLI::App& program) {
  const std::vector<CLI::App*> parsed = program.get_subcommands();
  return parsed.empty() ? program : *parsed.front();
}

// What was given and is not known: a flag before anything else.
std::string DescribeUnknown(const CLI::App& program,
                            const std::vector<std::string>& unknown) {
  const CLI::App& app = ChosenApp(program);
  const auto is_flag = [](const std::string& text) {
    return text.starts_with('-');
  };
  const auto flag = std::ranges::find_if(unknown, is_flag);
  const std::string what = flag == unknown.end()
                               ? unknown.front()
                               : flag->substr(0, flag->find('='));
  std::string kind = "flag";
  std::vector<std::string> known = FlagNames(app);
  if (flag == unknown.end()) {
    kind = &app == &program ? "command" : "argument";
    known.clear();
    for (const CLI::App* command : program.get_subcommands({})) {
      if (&app == &program) known.push_back(command->get_name());
    }
  }
  // To one letter any other is near.
  const std::vector<std::string> near =
      what.size() > 3 ? graph::NearestNames(what, known, 1)
                      : std::vector<std::string>();
  return fmt::format(
      "unknown {} '{}'{}", kind, graph::OneLine(what),
      near.empty() ? "" : fmt::format("; did you mean {}?", near.front()));
}

std::string DescribeUsageError(const CLI::App& program,
                               const CLI::ParseError& error) {
  std::vector<std::string> unknown = program.remaining(true);
  std::erase(unknown, "--");
  if (!unknown.empty()) return DescribeUnknown(program, unknown);
  const std::string message = error.what();
  if (error.get_name() != "ArgumentMismatch") {
    return graph::OneLine(message, 400);
  }
  const bool too_many = message.find("At Most") != std::string::npos;
  return graph::OneLine(message.substr(0, message.find(':')), 400) +
         (too_many ? ": expected once, found more often"
                   : ": expected a value, found none");
}

// The flag of an option that a library names: "max_units" is --max-units.
std::string FlagOf(std::string option) {
  std::ranges::replace(option, '_', '-');
  return "--" + option;
}

std::string FlagMessage(const problems::OptionError& error) {
  std::string message = FlagOf(error.option()) + ": " + error.complaint();
  if (!error.remedy().empty()) message += "; use " + FlagOf(error.remedy());
  return message;
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
      AddPlanCommand(program),
      AddFrontierCommand(program),
      AddBaselineCommand(program),
      AddCompareCommand(program),
      AddCheckCommand(program),
      AddTreeCommand(program),
      AddCurveCommand(program),
      AddOpsCommand(program),
      AddProfileCommand(program),
      AddSimulateCommand(program),
      AddDataflowCommand(program),
      AddCompletionCommand(program),
      AddVersionCommand(program),
      AddLlmCommand(program),
      AddLlmProfileCommand(program),
      AddLlmCompareCommand(program),
      AddLlmPlanCommand(program),
      AddLlmSearchCommand(program),
      AddLlmOptimalExecutionCommand(program),
      AddLlmAllExecutionsCommand(program),
      AddLlmMergeCommand(program),
      AddLlmValidationCommand(program),
      AddLlmParameterCalculatorCommand(program),
      AddLlmCsvCommand(program),
      AddLlmHeatmapCommand(program),
      AddLlm3dplotCommand(program),
      AddLlmFindHugeCommand(program),
      AddFitCommand(program),
  };
  for (const Command& command : commands) AddGlobalFlags(*command.app, global);
  program.require_subcommand(0, 1);
  LogFlags log_flags = TakeLogFlags({argv + std::min(argc, 1), argv + argc});

  try {
    std::ranges::reverse(log_flags.arguments);
    program.parse(std::move(log_flags.arguments));
  } catch (const CLI::ParseError& error) {
    const Terminal terminal(ColorMode::kNever, false, false);
    if (error.get_name() == "CallForVersion") {
      terminal.Print(std::string(error.what()) + "\n");
      return kExitOk;
    }
    if (error.get_exit_code() == 0) {
      terminal.Print(program.help());
      return kExitOk;
    }
    const CLI::App& app = ChosenApp(program);
    return Complain(fmt::format("{} (see 'acplan{} --help')",
                                DescribeUsageError(program, error),
                                &app == &program ? "" : " " + app.get_name()),
                    kExitBadInput);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) {
      RefuseEmptyValues(*command.app);
      return command.run(Terminal(ParseColor(global.color), global.quiet,
                                  global.verbose, log_flags.log));
    }
  }
  WriteToStderr(program.help());
  return kExitBadInput;
}

}  // namespace

}  // namespace acplan::cli

int main(int argc, char** argv) {
  using acplan::cli::Complain;
  try {
    return acplan::cli::Run(argc, argv);
  } catch (const acplan::problems::OptionError& error) {
    return Complain(acplan::cli::FlagMessage(error),
                    acplan::cli::kExitBadInput);
  } catch (const acplan::InputError& error) {
    return Complain(error.what(), acplan::cli::kExitBadInput);
  } catch (const acplan::cli::LimitError& error) {
    return Complain(error.what(), acplan::cli::kExitLimit);
  } catch (const std::bad_alloc&) {
    return Complain("out of memory", acplan::cli::kExitFailure);
  } catch (const std::exception& error) {
    return Complain(error.what(), acplan::cli::kExitFailure);
  }
}
