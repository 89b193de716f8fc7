#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace acplan::cli {

// Marks an option as the name of a file that its command writes. If several
// values are given, the last one counts. All other names of files are inputs.
void MarkAsOutput(CLI::Option* option);

// Adds -o and --output, marked.
CLI::Option* AddOutput(CLI::App& app, std::string& output,
                       const std::string& help);

// Throws InputError if a file that this command would write, or `log` ("":
// none), cannot be written, or is a regular file that the command also reads or
// writes otherwise: as an argument or the value of a flag, as "@FILE" of a
// list, as "FILE:RANK" of a strategy, or as the default of a flag that was not
// given.
void CheckOutputs(CLI::App& app, const std::string& log);

}  // namespace acplan::cli
