#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/log_flags.h"
#include "cli/input/output_files.h"
#include "cli/input/question_file.h"
#include "cli/terminal/help_text.h"
#include "cli/terminal/terminal.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "problems/plan_options.h"

namespace acplan::cli {

namespace {

struct GlobalFlags {
  std::string color = "auto";
  std::string errors = "text";
  bool quiet = false;
  bool verbose = false;
};

ColorMode ParseColor(const std::string& name) {
  if (name == "auto") return ColorMode::kAuto;
  if (name == "always") return ColorMode::kAlways;
  if (name == "never") return ColorMode::kNever;
  throw InputError(
      fmt::format("--color: expected auto, always or never, found '{}'",
                  graph::OneLine(name)));
}

ErrorFormat ParseErrors(const std::string& name) {
  if (name == "text") return ErrorFormat::kText;
  if (name == "json") return ErrorFormat::kJson;
  throw InputError(fmt::format("--errors: expected text or json, found '{}'",
                               graph::OneLine(name)));
}

// Returns the format of errors while arguments are parsed, which may fail.
ErrorFormat FindErrorFormat(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool is_last = i + 1 == arguments.size();
    if (arguments[i] == "--errors=json" ||
        (arguments[i] == "--errors" && !is_last &&
         arguments[i + 1] == "json")) {
      return ErrorFormat::kJson;
    }
  }
  return ErrorFormat::kText;
}

// Global flags may stand before or after the command.
void AddGlobalFlags(CLI::App& app, GlobalFlags& flags) {
  app.add_option("--color", flags.color, "auto (default), always or never")
      ->type_name("WHEN");
  app.add_option("--errors", flags.errors,
                 "text (default), or json: a JSON object a line on stderr")
      ->type_name("FORMAT");
  app.add_flag("-q,--quiet", flags.quiet, "no warnings, no progress");
  app.add_flag("-v,--verbose", flags.verbose,
               "log the progress of long searches, terminal or not");
}

const CLI::App& ChosenApp(const CLI::App& program) {
  const std::vector<CLI::App*> parsed = program.get_subcommands();
  return parsed.empty() ? program : *parsed.front();
}

// Describes the first unknown argument, flags before others.
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
  std::vector<std::string> known_names = FlagNames(app);
  if (flag == unknown.end()) {
    kind = &app == &program ? "command" : "argument";
    known_names.clear();
    for (const CLI::App* command : program.get_subcommands({})) {
      if (&app == &program) known_names.push_back(command->get_name());
    }
  }
  // A single letter is near to any other.
  const std::vector<std::string> near =
      what.size() > 3 ? graph::NearestNames(what, known_names, 1)
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

// Returns the flag of an option that a library names: "--max-units" for
// "max_units".
std::string FlagOf(std::string option) {
  std::ranges::replace(option, '_', '-');
  return "--" + option;
}

std::string FlagMessage(const problems::OptionError& error) {
  std::string message = FlagOf(error.option()) + ": " + error.complaint();
  if (!error.remedy().empty()) message += "; use " + FlagOf(error.remedy());
  return message;
}

using AddCommand = Command (*)(CLI::App&);

// A heading of --help and the commands under it.
struct CommandGroup {
  std::string_view heading;
  std::vector<AddCommand> commands;
};

std::vector<CommandGroup> CommandGroups() {
  return {
      {"Plan",
       {AddPlanCommand, AddFrontierCommand, AddRematCommand, AddCheckCommand}},
      {"Look",
       {AddReportCommand, AddExplainCommand, AddBaselineCommand,
        AddCompareCommand, AddTreeCommand, AddCurveCommand, AddOpsCommand}},
      {"Traces and graphs",
       {AddSimulateCommand, AddProfileCommand, AddDataflowCommand}},
      {"Training of language models, before any code runs",
       {AddLlmTrainCommand, AddLlmPlanCommand, AddLlmSearchCommand,
        AddFitCommand, AddLlmCompareCommand, AddLlmProfileCommand,
        AddLlmScoreCommand}},
      {"Calculon's cost model, its commands",
       {AddLlmCommand, AddLlmOptimalExecutionCommand,
        AddLlmAllExecutionsCommand, AddLlmMergeCommand, AddLlmValidationCommand,
        AddLlmParameterCalculatorCommand, AddLlmCsvCommand,
        AddLlmHeatmapCommand, AddLlm3dplotCommand, AddLlmFindHugeCommand}},
      {"acplan itself",
       {AddCompletionCommand, AddManualCommand, AddVersionCommand}}};
}

std::vector<Command> AddCommands(CLI::App& program) {
  std::vector<Command> commands;
  for (const CommandGroup& group : CommandGroups()) {
    for (const AddCommand add : group.commands) {
      commands.push_back(add(program));
      commands.back().app->group(std::string(group.heading));
    }
  }
  return commands;
}

// Returns the text of --help or --version, if an error of parsing says that one
// of them was given.
std::optional<std::string> RequestedText(const CLI::App& program,
                                         const CLI::ParseError& error) {
  if (error.get_name() == "CallForVersion") {
    return std::string(error.what()) + "\n";
  }
  if (error.get_exit_code() == 0) return WithinHelpColumns(program.help());
  return std::nullopt;
}

// Parses the arguments into the flags of the program and its commands. Returns
// the exit code if there is nothing else to do.
std::optional<int> Parse(CLI::App& program,
                         std::vector<std::string> arguments) {
  try {
    std::ranges::reverse(arguments);
    program.parse(std::move(arguments));
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (const auto text = RequestedText(program, error)) {
      Terminal(ColorMode::kNever, false, false).Print(*text);
      return kExitOk;
    }
    const CLI::App& app = ChosenApp(program);
    throw InputError(fmt::format("{} (see 'acplan{} --help')",
                                 DescribeUsageError(program, error),
                                 &app == &program ? "" : " " + app.get_name()));
  }
}

// Ends the program, and reports an exception that is why. nlohmann_json also
// asks for memory when it frees documents, which may not fail; so if memory ran
// out, the message says so.
template <ErrorFormat kFormat>
void EndAtOnce() {
  try {
    if (const std::exception_ptr why = std::current_exception()) {
      std::rethrow_exception(why);
    }
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kText =
        kFormat == ErrorFormat::kJson
            ? "{\"error\":\"out of memory\",\"exit_code\":1}\n"
            : "acplan: out of memory\n";
    [[maybe_unused]] const auto written_bytes =
        ::write(STDERR_FILENO, kText.data(), kText.size());
    std::_Exit(kExitFailure);
  } catch (const std::exception& error) {
    WriteError(kFormat, error.what(), kExitFailure);  // a defect
  } catch (...) {
    WriteError(kFormat, "ended by a defect", kExitFailure);
  }
  std::abort();
}

int Run(const std::vector<std::string>& arguments) {
  CLI::App program(
      "acplan: optimal activation checkpointing under a memory budget");
  program.name("acplan");
  GlobalFlags global;
  AddGlobalFlags(program, global);
  program.footer(
      "Example:\n  acplan plan data/profiles/gpt2_small.json.gz --budget "
      "10GiB\n"
      "'acplan COMMAND --help' explains a command.");
  const std::vector<Command> commands = AddCommands(program);
  for (const Command& command : commands) {
    AddQuestion(*command.app);
    AddGlobalFlags(*command.app, global);
  }
  program.require_subcommand(0, 1);
  LogFlags log_flags = TakeLogFlags(arguments);
  const std::optional<QuestionFile> question =
      FindQuestion(program, log_flags.arguments);
  if (question) {
    std::ranges::copy(question->arguments,
                      std::back_inserter(log_flags.arguments));
  }
  // A flag without a value takes the command for one: then that flag is the
  // error to report, not the arguments after it.
  const auto check_global = [&] {
    ParseColor(global.color);
    ParseErrors(global.errors);
  };
  try {
    const auto exit_code = Parse(program, std::move(log_flags.arguments));
    if (exit_code) return *exit_code;
  } catch (const InputError&) {
    check_global();
    throw;
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    try {
      RefuseEmptyValues(*command.app);
      CheckOutputs(*command.app, log_flags.log.file);
      return command.run(Terminal(ParseColor(global.color), global.quiet,
                                  global.verbose, log_flags.log,
                                  ParseErrors(global.errors)));
    } catch (const problems::OptionError& error) {
      const std::string complaint = FlagMessage(error);
      throw InputError(question ? question->NamingKeys(complaint) : complaint);
    } catch (const InputError& error) {
      if (!question) throw;
      throw InputError(question->NamingKeys(error.what()));
    }
  }
  check_global();
  WriteToStderr(WithinHelpColumns(program.help()));
  return kExitBadInput;
}

}  // namespace

}  // namespace acplan::cli

int main(int argc, char** argv) {
  using acplan::cli::WriteError;
  const std::vector<std::string> arguments(argv + std::min(argc, 1),
                                           argv + argc);
  const auto format = acplan::cli::FindErrorFormat(arguments);
  using acplan::cli::ErrorFormat;
  std::set_terminate(format == ErrorFormat::kJson
                         ? acplan::cli::EndAtOnce<ErrorFormat::kJson>
                         : acplan::cli::EndAtOnce<ErrorFormat::kText>);
  try {
    return acplan::cli::Run(arguments);
  } catch (const acplan::InputError& error) {
    return WriteError(format, error.what(), acplan::cli::kExitBadInput);
  } catch (const acplan::cli::LimitError& error) {
    return WriteError(format, error.what(), acplan::cli::kExitLimit);
  } catch (const std::bad_alloc&) {
    return WriteError(format, "out of memory", acplan::cli::kExitFailure);
  } catch (const std::exception& error) {
    return WriteError(format, error.what(), acplan::cli::kExitFailure);
  }
}
