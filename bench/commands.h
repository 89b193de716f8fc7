#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace acplan::bench {

struct CommandCost {
  int exit_code = 0;
  double seconds = 0;
  // Peak resident memory, or this program's own where that was larger when it
  // started the command (Linux hands it down).
  double megabytes = 0;
};

// Where a command reads from and writes to.
struct CommandFiles {
  std::filesystem::path in = "/dev/null";
  std::filesystem::path out = "/dev/null";
};

// A whole program from start to exit; words[0] is found as in a shell. Throws
// std::runtime_error where it cannot be started or is ended by a signal.
CommandCost RunCommand(std::vector<std::string> words,
                       const CommandFiles& files = {});

// The median of the seconds and the largest of the megabytes. Throws
// std::runtime_error where a run fails.
CommandCost MedianCost(const std::vector<std::string>& words, int runs);

// Runs `work` in a child process, so that what it needs does not count as this
// program's memory. Throws std::runtime_error where it throws.
void RunInChild(const std::function<void()>& work);

template <typename Measure>
double Median(int runs, Measure measure) {
  std::vector<double> values;
  for (int i = 0; i < runs; ++i) values.push_back(measure());
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// A new folder for temporary files, removed with all that is in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace acplan::bench
