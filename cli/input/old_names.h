#pragma once

#include <string>
#include <vector>

namespace acplan::cli {

// The arguments of a program, and a line for its user: "" if there is nothing to say.
struct RenamedArguments {
  std::vector<std::string> arguments;
  std::string note;
};

// Returns the arguments with the new name of a command in the place of an old one. Old
// names work for one release; `note` says which name is to be used.
RenamedArguments WithNewNames(std::vector<std::string> arguments);

}  // namespace acplan::cli
