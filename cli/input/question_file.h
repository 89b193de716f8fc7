#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace acplan::cli {

// The arguments of a command as a JSON object (docs/file_formats.md,
// acplan.question), for programs, which have values rather than a command line.
// A key is the name of a flag without its dashes, with '_' between words, or
// that of an argument in lower case.
struct QuestionFile {
  // The name of the file in messages; for the standard input, that of the
  // command.
  std::string name;
  std::vector<std::string> arguments;
  std::set<std::string> flags;  // the flags that the question gives, as
                                // "--max-units"

  // Returns a complaint about one of these flags with the key in its place:
  // "question.json: max_units: expected ...". Returns other complaints
  // unchanged.
  std::string NamingKeys(const std::string& complaint) const;
};

// Adds --question to a command.
void AddQuestion(CLI::App& command);

// Reads the question that "--question FILE" among the arguments of the program
// names, where "-" is the standard input. Returns nullopt if there is none.
// `program` has all commands. Throws InputError for a file that is no question
// of the command.
std::optional<QuestionFile> FindQuestion(
    const CLI::App& program, const std::vector<std::string>& arguments);

}  // namespace acplan::cli
