#pragma once

#include <string>
#include <vector>

namespace acplan::cli {

// Returns the arguments of a program with the path of a bundled file in the place of
// its name: example:llama8b, example:traces/gpt2_small, or the same after a '='. An
// output stays as it is. Throws InputError if no file, or more than one, has the name.
std::vector<std::string> WithExamplePaths(std::vector<std::string> arguments);

}  // namespace acplan::cli
