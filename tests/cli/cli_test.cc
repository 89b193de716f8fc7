#include "tests/cli/cli_test.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "graph/base/file_io.h"

namespace acplan::cli {

namespace {

namespace fs = std::filesystem;

std::string ReadBytes(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

void Check(int error, const char* what) {
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), what);
  }
}

class SpawnActions {
 public:
  SpawnActions() { Check(posix_spawn_file_actions_init(&actions_), "init"); }
  SpawnActions(const SpawnActions&) = delete;
  SpawnActions& operator=(const SpawnActions&) = delete;
  ~SpawnActions() { posix_spawn_file_actions_destroy(&actions_); }

  void Close(int fd) {
    Check(posix_spawn_file_actions_addclose(&actions_, fd), "close");
  }
  void Write(int fd, const std::string& path) {
    Check(posix_spawn_file_actions_addopen(&actions_, fd, path.c_str(),
                                           O_WRONLY | O_CREAT, 0666),
          "open");
  }
  void Read(int fd, const std::string& path) {
    Check(posix_spawn_file_actions_addopen(&actions_, fd, path.c_str(),
                                           O_RDONLY, 0),
          "open");
  }
  void Enter(const fs::path& folder) {
    Check(posix_spawn_file_actions_addchdir_np(&actions_, folder.c_str()),
          "chdir");
  }
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

std::vector<std::string> Environment(const RunOptions& options) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("NO_COLOR=") && !text.starts_with("TERM=")) {
      environment.emplace_back(text);
    }
  }
  environment.emplace_back("TERM=xterm");
  // The last one counts, as with putenv.
  for (const auto& [name, value] : options.environment) {
    std::erase_if(environment, [&](const std::string& entry) {
      return entry.starts_with(name + "=");
    });
    environment.push_back(fmt::format("{}={}", name, value));
  }
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

Process::Process(const fs::path& program,
                 const std::vector<std::string>& arguments,
                 const fs::path& folder, const RunOptions& options) {
  SpawnActions actions;
  actions.Enter(folder);
  if (options.input.empty()) {
    actions.Close(STDIN_FILENO);
  } else {
    actions.Read(STDIN_FILENO, options.input);
  }
  int far_end = -1;
  std::string terminal_name;
  if (options.out == Stream::kTerminal || options.err == Stream::kTerminal) {
    terminal_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal_ < 0 || grantpt(terminal_) != 0 || unlockpt(terminal_) != 0) {
      Check(errno, "posix_openpt");
    }
    terminal_name = ptsname(terminal_);
    // Without it, our end would report that there is no writer yet.
    far_end = open(terminal_name.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    const winsize size{24, options.columns, 0, 0};
    ioctl(terminal_, TIOCSWINSZ, &size);
  }
  const auto direct = [&](int fd, Stream stream, const char* file) {
    if (stream == Stream::kClosed) return actions.Close(fd);
    if (stream == Stream::kFull) return actions.Write(fd, "/dev/full");
    if (stream == Stream::kTerminal) return actions.Write(fd, terminal_name);
    actions.Write(fd, (streams_.path() / file).string());
  };
  direct(STDOUT_FILENO, options.out, "out");
  direct(STDERR_FILENO, options.err, "err");

  std::vector<std::string> words{program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> environment = Environment(options);
  const int error =
      posix_spawnp(&pid_, program.c_str(), actions.get(), nullptr,
                   Pointers(words).data(), Pointers(environment).data());
  if (far_end >= 0) close(far_end);
  Check(error, program.c_str());
}

Process::~Process() {
  if (pid_ > 0 && !status_) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (terminal_ >= 0) close(terminal_);
}

void Process::Signal(int number) const { kill(pid_, number); }

void Process::WaitUntilItHandles(int number) {
  const std::string status = fmt::format("/proc/{}/status", pid_);
  while (!HasEnded()) {
    std::ifstream file(status);
    for (std::string line; std::getline(file, line);) {
      if (!line.starts_with("SigCgt:")) continue;
      const auto handled = std::stoull(line.substr(7), nullptr, 16);
      if ((handled >> (number - 1)) % 2 == 1) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string Process::ErrSoFar() const {
  return ReadBytes(streams_.path() / "err");
}

bool Process::HasEnded() {
  int status = 0;
  if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
  return status_.has_value();
}

Outcome Process::Wait() {
  Outcome outcome;
  char chunk[4096];
  while (terminal_ >= 0) {
    const ssize_t got = read(terminal_, chunk, sizeof chunk);
    if (got <= 0) break;  // EIO once the program has ended
    outcome.out.append(chunk, static_cast<size_t>(got));
  }
  if (!status_) {
    int status = 0;
    while (waitpid(pid_, &status, 0) != pid_) {
    }
    status_ = status;
  }
  outcome.exit_code =
      WIFEXITED(*status_) ? WEXITSTATUS(*status_) : 128 + WTERMSIG(*status_);
  outcome.out += ReadBytes(streams_.path() / "out");
  outcome.err = ErrSoFar();
  return outcome;
}

std::string CliTest::Read(const fs::path& name) const {
  return ReadBytes(folder() / name);
}

void CliTest::PutFile(const fs::path& name, std::string_view bytes) const {
  graph::PutBytes(folder() / name, bytes);
}

bool CliTest::Exists(const fs::path& name) const {
  return fs::exists(folder() / name);
}

namespace {

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream stream(text);
  for (std::string word; std::getline(stream, word, ' ');)
    words.push_back(word);
  return words;
}

}  // namespace

Outcome CliTest::Acplan(const std::vector<std::string>& arguments,
                        const RunOptions& options) const {
  std::vector<std::string> words;
  if (!arguments.empty()) words = Words(arguments.front());
  if (words.size() < 2) {
    return Process(ACPLAN_PROGRAM, arguments, folder(), options).Wait();
  }
  words.insert(words.end(), arguments.begin() + 1, arguments.end());
  return Process(ACPLAN_PROGRAM, words, folder(), options).Wait();
}

std::string CliTest::AcplanOut(
    const std::vector<std::string>& arguments) const {
  const Outcome outcome = Acplan(arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_EQ(outcome.err, "");
  return outcome.out;
}

nlohmann::json CliTest::AcplanJson(std::vector<std::string> arguments) const {
  arguments.emplace_back("--json");
  return nlohmann::json::parse(AcplanOut(arguments));
}

std::string ProfilePath(std::string_view name) {
  return fmt::format("{}/profiles/{}.json.gz", ACPLAN_DATA_DIR, name);
}

const nlohmann::json& SmallProfile() {
  static const nlohmann::json profile =
      nlohmann::json::parse(graph::ReadFile(ProfilePath("transformer4")));
  return profile;
}

std::string Edited(nlohmann::json document, const std::vector<Edit>& edits) {
  const auto mark = [](size_t i) { return fmt::format("@@edit {}@@", i); };
  for (size_t i = 0; i < edits.size(); ++i) {
    const nlohmann::json::json_pointer pointer(edits[i].pointer);
    if (edits[i].text) {
      document[pointer] = mark(i);
    } else if (nlohmann::json& parent = document.at(pointer.parent_pointer());
               parent.is_array()) {
      parent.erase(std::stoul(pointer.back()));
    } else {
      EXPECT_EQ(parent.erase(pointer.back()), 1) << edits[i].pointer;
    }
  }
  std::string text = document.dump();
  for (size_t i = 0; i < edits.size(); ++i) {
    const std::string marked_text = '"' + mark(i) + '"';
    if (const size_t place = text.find(marked_text);
        place != std::string::npos) {
      text.replace(place, marked_text.size(), *edits[i].text);
    }
  }
  return text;
}

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

void ExpectRefused(const Outcome& outcome,
                   const std::vector<std::string>& fragments) {
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, testing::StartsWith("acplan: "));
  EXPECT_EQ(Lines(outcome.err).size(), 1) << outcome.err;
  EXPECT_THAT(outcome.err, testing::EndsWith("\n"));
  for (const std::string& fragment : fragments) {
    EXPECT_THAT(outcome.err, testing::HasSubstr(fragment));
  }
}

}  // namespace acplan::cli
