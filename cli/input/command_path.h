#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace acplan::cli {

// A command may lie in a folder of commands: `acplan train search`. A folder is an
// application with subcommands; a command has none.

// Returns the names from below the program on: "train search", or "" of the program.
std::string CommandPath(const CLI::App& app);

// Returns the commands below a program or a folder, those of its folders in their place.
std::vector<const CLI::App*> CommandsOf(const CLI::App& app);

// Returns what the arguments name: a command, the last folder before a name that is none,
// or the program. Flags and their values are passed over.
const CLI::App& NamedApp(const CLI::App& program,
                         const std::vector<std::string>& arguments);

}  // namespace acplan::cli
