#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/command_path.h"
#include "cli/input/example_names.h"
#include "cli/input/flags.h"
#include "cli/input/log_flags.h"
#include "cli/input/old_names.h"
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
                 "text (default), or json: one object per line")
      ->type_name("FORMAT");
  app.add_flag("-q,--quiet", flags.quiet, "print no warnings and no progress");
  app.add_flag("-v,--verbose", flags.verbose,
               "log the progress of long searches even without a terminal");
}

// Returns the command that was parsed, or the folder or the program without one.
const CLI::App& ChosenApp(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : ChosenApp(*parsed.front());
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
    const std::vector<const CLI::App*> commands = app.get_subcommands({});
    kind = commands.empty() ? "argument" : "command";
    known_names.clear();
    for (const CLI::App* command : commands) {
      known_names.push_back(command->get_name());
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

// A heading of --help, with the commands, or folders of commands, under it.
struct CommandGroup {
  std::string_view heading;
  std::vector<AddCommand> commands;
};

struct CommandFolder {
  std::string_view heading;
  std::string_view name;
  std::string_view description;
  std::vector<AddCommand> commands;
};

constexpr std::string_view kOther = "Other";

std::vector<CommandGroup> CommandGroups() {
  return {{"Plan",
           {AddPlanCommand, AddFrontierCommand, AddCheckCommand, AddEmitCommand,
            AddAuditCommand}},
          {"Inspect",
           {AddShowCommand, AddExplainCommand, AddSimulateCommand,
            AddReportCommand, AddProfileCommand}},
          {"Compiled steps", {AddRematCommand, AddScheduleCommand}},
          {kOther,
           {AddTorchCommand, AddCompletionCommand, AddManualCommand,
            AddVersionCommand}}};
}

std::vector<CommandFolder> CommandFolders() {
  return {
      {"Plan",
       "lengths",
       "Plan and simulate batches of several lengths",
       {AddLengthsPlanCommand, AddLengthsSimulateCommand,
        AddLengthsCheckCommand, AddLengthsExplainCommand,
        AddLengthsReportCommand}},
      {"Compiled steps",
       "module",
       "Analyse one module: curve, policy, dataflow",
       {AddModuleCurveCommand, AddModulePolicyCommand,
        AddModuleDataflowCommand}},
      {"LLM training",
       "train",
       "Estimate LLM training time and memory; search strategies",
       {AddTrainShowCommand, AddTrainPlanCommand, AddTrainSearchCommand,
        AddTrainFitCommand, AddTrainCompareCommand, AddTrainProfileCommand,
        AddTrainScoreCommand}},
      {"LLM training",
       "calculon",
       "Run the commands of the Calculon cost model",
       {AddLlmCommand, AddLlmOptimalExecutionCommand,
        AddLlmAllExecutionsCommand, AddLlmMergeCommand, AddLlmValidationCommand,
        AddLlmParameterCalculatorCommand, AddLlmCsvCommand,
        AddLlmHeatmapCommand, AddLlm3dplotCommand, AddLlmFindHugeCommand}}};
}

// The columns of names in --help: of the program, few and short.
constexpr size_t kNameColumns = 22;

// Adds all commands; global flags may stand behind the name of a folder, too.
std::vector<Command> AddCommands(CLI::App& program, GlobalFlags& global) {
  std::vector<Command> commands;
  const auto add_groups = [&](bool is_last) {
    for (const CommandGroup& group : CommandGroups()) {
      if ((group.heading == kOther) != is_last) continue;
      for (const AddCommand add : group.commands) {
        commands.push_back(add(program));
        commands.back().app->group(std::string(group.heading));
      }
    }
  };
  add_groups(/*is_last=*/false);
  for (const CommandFolder& folder : CommandFolders()) {
    CLI::App* app = program.add_subcommand(std::string(folder.name),
                                           std::string(folder.description));
    app->group(std::string(folder.heading));
    app->require_subcommand(0, 1);
    app->footer(fmt::format("'acplan {} COMMAND --help' explains a command.",
                            folder.name));
    AddGlobalFlags(*app, global);
    for (const AddCommand add : folder.commands) {
      commands.push_back(add(*app));
      commands.back().app->group("Commands");
    }
  }
  add_groups(/*is_last=*/true);
  for (const Command& command : commands) {
    AddQuestion(*command.app);
    AddGlobalFlags(*command.app, global);
  }
  const auto formatter = std::make_shared<CLI::Formatter>();
  formatter->column_width(kNameColumns);
  program.formatter(formatter);
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
    throw InputError(fmt::format(
        "{} (see 'acplan{} --help')", DescribeUsageError(program, error),
        &app == &program ? "" : " " + CommandPath(app)));
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
  if (!arguments.empty() && arguments.front() == "torch") {
    return RunTorch({arguments.begin() + 1, arguments.end()});
  }
  CLI::App program(
      "acplan: optimal activation checkpointing under a memory budget");
  program.name("acplan");
  GlobalFlags global;
  AddGlobalFlags(program, global);
  program.footer(
      "Example:\n  acplan plan example:profiles/gpt2_small --budget "
      "10GiB\n"
      "'acplan COMMAND --help' explains a command.");
  const std::vector<Command> commands = AddCommands(program, global);
  program.require_subcommand(0, 1);
  LogFlags log_flags = TakeLogFlags(WithExamplePaths(arguments));
  RenamedArguments renamed = WithNewNames(std::move(log_flags.arguments));
  log_flags.arguments = std::move(renamed.arguments);
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
      const Terminal terminal(ParseColor(global.color), global.quiet,
                              global.verbose, log_flags.log,
                              ParseErrors(global.errors));
      if (!renamed.note.empty()) terminal.Warn(renamed.note);
      return command.run(terminal);
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
