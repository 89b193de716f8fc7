#pragma once

#include <filesystem>
#include <string>

namespace acplan::cli {

// Returns the folder of the data that came with the program: beside the program
// if it is installed, else in the source tree that it was built from.
std::filesystem::path DataFolder();

// Returns the table of what GPUs offer PyTorch.
std::filesystem::path DevicesFile();

// Returns the table of what links between GPUs and hosts carry.
std::filesystem::path LinksFile();

// Returns the table of errors of predictions of measured training runs.
std::filesystem::path RunErrorsFile();

// Returns `path`, the value of --systems, or, if it is empty, the file of that
// data.
std::filesystem::path SystemsFile(const std::string& path);

}  // namespace acplan::cli
