#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace acplan::cli {

// Marks an option as the name of a file that its command writes; of several
// values the last one. All other names of files are inputs.
void MarkAsOutput(CLI::Option* option);

// -o and --output, marked.
CLI::Option* AddOutput(CLI::App& app, std::string& output,
                       const std::string& help);

// Throws InputError where a file that this command would write, or `log` ("":
// none), cannot be written, or is a regular file that the command reads or writes
// otherwise: as an argument or the value of a flag, as "@FILE" of a list, as
// "FILE:RANK" of a strategy, or because a flag was not given that has a default.
void CheckOutputs(CLI::App& app, const std::string& log);

}  // namespace acplan::cli
