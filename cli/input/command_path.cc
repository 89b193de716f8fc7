#include "cli/input/command_path.h"

#include <algorithm>

namespace acplan::cli {

std::string CommandPath(const CLI::App& app) {
  const CLI::App* parent = app.get_parent();
  if (parent == nullptr) return "";
  const std::string folder = CommandPath(*parent);
  return folder.empty() ? app.get_name() : folder + " " + app.get_name();
}

std::vector<const CLI::App*> CommandsOf(const CLI::App& app) {
  std::vector<const CLI::App*> commands;
  for (const CLI::App* child : app.get_subcommands({})) {
    const std::vector<const CLI::App*> below = CommandsOf(*child);
    if (below.empty()) {
      commands.push_back(child);
    } else {
      commands.insert(commands.end(), below.begin(), below.end());
    }
  }
  return commands;
}

const CLI::App& NamedApp(const CLI::App& program,
                         const std::vector<std::string>& arguments) {
  const CLI::App* app = &program;
  for (const std::string& argument : arguments) {
    const std::vector<const CLI::App*> children = app->get_subcommands({});
    const auto child =
        std::ranges::find_if(children, [&](const CLI::App* candidate) {
          return candidate->check_name(argument);
        });
    if (child != children.end()) app = *child;
  }
  return *app;
}

}  // namespace acplan::cli
