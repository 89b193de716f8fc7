#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/profile/profile.h"
#include "tests/graph/test_files.h"

namespace acplan::cli {

// The target of a standard stream of the program.
enum class Stream { kFile, kClosed, kFull, kTerminal };

struct RunOptions {
  Stream out = Stream::kFile;
  Stream err = Stream::kFile;
  std::vector<std::pair<std::string, std::string>> environment = {};
  unsigned short columns = 0;  // of the terminal; 0: unknown
  std::string input = {};  // the file that is the standard input; empty: closed
};

struct Outcome {
  int exit_code = -1;  // 128 + signal if one ended the program
  std::string out, err;
};

// A run of a program in a folder, without NO_COLOR unless the options set it.
// If a stream goes to a terminal, Outcome::out has the text written there.
class Process {
 public:
  Process(const std::filesystem::path& program,
          const std::vector<std::string>& arguments,
          const std::filesystem::path& folder, const RunOptions& options = {});
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process();

  void Signal(int number) const;
  // Waits until the program handles the signal itself, or has ended.
  void WaitUntilItHandles(int number);
  std::string ErrSoFar() const;
  bool HasEnded();
  Outcome Wait();

 private:
  graph::TemporaryFolder streams_;
  pid_t pid_ = -1;
  int terminal_ = -1;  // our end
  std::optional<int> status_;
};

// Tests of the program in a folder of their own.
class CliTest : public testing::Test {
 protected:
  const std::filesystem::path& folder() const { return folder_.path(); }
  std::string Read(const std::filesystem::path& name) const;
  void PutFile(const std::filesystem::path& name, std::string_view bytes) const;
  bool Exists(const std::filesystem::path& name) const;

  // Runs the program. The first argument may name a command in a folder: "train
  // search".
  Outcome Acplan(const std::vector<std::string>& arguments,
                 const RunOptions& options = {}) const;
  // Returns the output of a run that must succeed and be silent on stderr.
  std::string AcplanOut(const std::vector<std::string>& arguments) const;
  nlohmann::json AcplanJson(std::vector<std::string> arguments) const;

 private:
  graph::TemporaryFolder folder_;
};

// Returns the path of the bundled profile, for "llama8b".
std::string ProfilePath(std::string_view name);
// Returns the profile "transformer4".
const nlohmann::json& SmallProfile();

// A change of a JSON document: the new text of the value at a JSON pointer,
// which need not be JSON; without a text, the value is removed.
struct Edit {
  std::string pointer;
  std::optional<std::string> text;
};

std::string Edited(nlohmann::json document, const std::vector<Edit>& edits);

std::vector<std::string> Lines(std::string_view text);

// Expects exit code 2, one line on stderr, "acplan: ..." with all of these
// fragments, and nothing on stdout.
void ExpectRefused(const Outcome& outcome,
                   const std::vector<std::string>& fragments);

}  // namespace acplan::cli
