#include "bench/commands.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <stdexcept>

#include "solver/search.h"

namespace acplan::bench {

CommandCost RunCommand(std::vector<std::string> words,
                       const CommandFiles& files) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, files.in.c_str(),
                                   O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, files.out.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  const solver::Stopwatch stopwatch;
  pid_t pid = 0;
  const int error =
      posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + words[0]);
  int status = 0;
  rusage usage{};
  wait4(pid, &status, 0, &usage);
  if (!WIFEXITED(status)) {
    throw std::runtime_error(words[0] + " was ended by a signal");
  }
  return {.exit_code = WEXITSTATUS(status),
          .seconds = stopwatch.Seconds(),
          .megabytes = static_cast<double>(usage.ru_maxrss) / 1000};
}

CommandCost MedianCost(const std::vector<std::string>& words, int runs) {
  CommandCost cost;
  cost.seconds = Median(runs, [&] {
    const CommandCost run = RunCommand(words);
    if (run.exit_code != 0) {
      throw std::runtime_error(
          fmt::format("failed: {}", fmt::join(words, " ")));
    }
    cost.megabytes = std::max(cost.megabytes, run.megabytes);
    return run.seconds;
  });
  return cost;
}

void RunInChild(const std::function<void()>& work) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      _exit(1);
    }
    _exit(0);
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFEXITED(status) ||
      WEXITSTATUS(status) != 0) {
    throw std::runtime_error("a child process failed");
  }
}

TemporaryFolder::TemporaryFolder()
    : path_(std::filesystem::temp_directory_path() /
            fmt::format("acplan-bench-{}", getpid())) {
  std::filesystem::create_directory(path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace acplan::bench
