#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

namespace {

// Returns one function for both shells; zsh runs it through bashcompinit. If it
// has no reply, the shell completes file names.
std::string BashScript(const CLI::App& program) {
  std::vector<std::string> commands;
  std::vector<std::string> names;  // and short names
  std::string cases;
  for (const CLI::App* app : program.get_subcommands({})) {
    commands.push_back(app->get_name());
    std::vector<std::string> its_names = app->get_aliases();
    its_names.push_back(app->get_name());
    names.insert(names.end(), its_names.begin(), its_names.end());
    cases +=
        fmt::format("      {}) words=\"{}\" ;;\n", fmt::join(its_names, "|"),
                    fmt::join(FlagNames(*app), " "));
  }
  return fmt::format(
      R"(_acplan() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" command="" word words=""
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in
      {}) command="$word"; break ;;
    esac
  done
  if [[ -z "$command" ]]; then
    words="{} {}"
  elif [[ "$current" == -* ]]; then
    case "$command" in
{}    esac
  else
    return
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _acplan acplan
)",
      fmt::join(names, "|"), fmt::join(commands, " "),
      fmt::join(FlagNames(program), " "), cases);
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
