#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace acplan::cli {

// The levels of the result lines of the cost model's commands are those of
// Python's logging.
enum class ResultLevel { kDebug = 10, kInfo = 20, kCritical = 50 };

// Which of them are shown, and where: "" is stdout.
struct ResultLog {
  int least_level = static_cast<int>(ResultLevel::kInfo);
  std::string file;
};

enum class ColorMode { kAuto, kAlways, kNever };

// How stderr tells of errors and warnings: for people, or as a JSON object a
// line (docs/command_line.md, "Errors").
enum class ErrorFormat { kText, kJson };

// Writes to stderr, at once. Text that cannot be written is lost.
void WriteToStderr(std::string_view text);

// Writes "acplan: MESSAGE" to stderr, or {"error": MESSAGE, "exit_code":
// EXIT_CODE}, on one line. Returns the exit code.
int WriteError(ErrorFormat format, std::string_view message, int exit_code);

// Writes results to stdout, and the rest to stderr.
class Terminal {
 public:
  // Throws InputError where the log's file cannot be written.
  Terminal(ColorMode color, bool quiet, bool verbose, const ResultLog& log = {},
           ErrorFormat errors = ErrorFormat::kText);

  // Styled for a person where stdout takes colours, else as it is.
  std::string Bold(std::string_view text) const;
  std::string Dim(std::string_view text) const;
  std::string Green(std::string_view text) const;
  std::string Yellow(std::string_view text) const;

  // A result line, to the log. Throws std::runtime_error where it cannot be
  // written.
  void Report(ResultLevel level, std::string_view line) const;
  bool Reports(ResultLevel level) const;

  // Writes to stdout, at once. Throws std::runtime_error where it cannot be written.
  void Print(std::string_view text) const;
  // Writes "acplan: warning: ..." or {"warning": ...} to stderr, unless quiet.
  void Warn(std::string_view text) const;
  // As WriteError, in the format of this terminal.
  int Complain(std::string_view message, int exit_code) const;
  // As Complain where errors are JSON, else silent: for a message that a person
  // reads in the results. Its lines are joined by "; ".
  int Explain(std::string_view message, int exit_code) const;

  // "acplan: ..." to stderr with --verbose.
  void Log(std::string_view text) const;

  // How wide stdout is; where it is no terminal, as wide as is comfortable.
  size_t Columns() const;
  bool IsScreen() const;       // stdout is a terminal: a person reads it there
  bool ShowsProgress() const;  // stderr is a terminal and not quiet
  bool verbose() const { return verbose_; }

 private:
  std::string Styled(std::string_view code, std::string_view text) const;

  bool color_;
  bool quiet_;
  bool verbose_;
  ErrorFormat errors_;
  int least_level_;
  std::shared_ptr<std::FILE> log_;  // stdout where there is none
};

// A line on stderr that follows a search: on a terminal one line rewritten from
// the first second on; with --verbose a line a second; else none. Cleared when
// it goes out of scope.
class ProgressLine {
 public:
  explicit ProgressLine(const Terminal& terminal) : terminal_(terminal) {}
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows `text()`, where it is time for another line `seconds` after the
  // search began.
  void Show(double seconds, const std::function<std::string()>& text);
  void Clear();

 private:
  const Terminal& terminal_;
  bool is_shown_ = false;
  double last_seconds_ = 0;
};

// After a call the first Ctrl-C (SIGINT) or SIGTERM sets the flag; a second one
// ends the program at once.
const std::atomic<bool>& InterruptFlag();

}  // namespace acplan::cli
