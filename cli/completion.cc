#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/command_path.h"
#include "cli/input/flags.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

namespace {

// Returns a command's names, each behind that of its folder: "version|v", "train
// search" as "train/search".
std::vector<std::string> PathsOf(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  const std::string folder =
      parent->get_parent() ? parent->get_name() + "/" : "";
  std::vector<std::string> paths;
  for (const std::string& alias : app.get_aliases()) {
    paths.push_back(folder + alias);
  }
  paths.push_back(folder + app.get_name());
  return paths;
}

std::string Case(const std::vector<std::string>& paths,
                 const std::vector<std::string>& words) {
  return fmt::format("      {}) words=\"{}\" ;;\n", fmt::join(paths, "|"),
                     fmt::join(words, " "));
}

std::vector<std::string> NamesIn(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* child : app.get_subcommands({})) {
    names.push_back(child->get_name());
  }
  return names;
}

// Returns one function for both shells; zsh runs it through bashcompinit. If it
// has no reply, the shell completes file names.
std::string BashScript(const CLI::App& program) {
  std::vector<std::string> paths_of_commands;  // all paths, folders among them
  std::string flags;
  std::string folders;
  for (const CLI::App* app : program.get_subcommands({})) {
    if (app->get_subcommands({}).empty()) continue;
    paths_of_commands.push_back(app->get_name());
    folders += Case({app->get_name()}, NamesIn(*app));
  }
  for (const CLI::App* app : CommandsOf(program)) {
    const std::vector<std::string> paths = PathsOf(*app);
    paths_of_commands.insert(paths_of_commands.end(), paths.begin(),
                             paths.end());
    flags += Case(paths, FlagNames(*app));
  }
  return fmt::format(
      R"(_acplan() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" path="" word words=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "${{path:+$path/}}$word" in
      {}) path="${{path:+$path/}}$word" ;;
    esac
  done
  if [[ -z "$path" ]]; then
    words="{} {}"
  elif [[ "$current" == -* ]]; then
    case "$path" in
{}    esac
  else
    case "$path" in
{}      *) return ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _acplan acplan
)",
      fmt::join(paths_of_commands, "|"), fmt::join(NamesIn(program), " "),
      fmt::join(FlagNames(program), " "), flags, folders);
}

}  // namespace

Command AddCompletionCommand(CLI::App& program) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = program.add_subcommand(
      "completion", "Print a completion script for bash or zsh");
  app->add_option("SHELL", *shell, "bash or zsh")->required();
  app->footer("Example:\n  source <(acplan completion bash)");
  return {app, [shell, &program](const Terminal& terminal) {
            if (*shell != "bash" && *shell != "zsh") {
              throw InputError(fmt::format(
                  "completion: expected bash or zsh, found '{}'", *shell));
            }
            const std::string prologue =
                *shell == "zsh"
                    ? "autoload -U +X compinit && compinit\n"
                      "autoload -U +X bashcompinit && bashcompinit\n"
                    : "";
            terminal.Print(prologue + BashScript(program));
            return kExitOk;
          }};
}

}  // namespace acplan::cli
