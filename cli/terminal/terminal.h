#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace acplan::cli {

// The levels of the result lines of the cost model's commands, which are those
// of Python's logging.
enum class ResultLevel { kDebug = 10, kInfo = 20, kCritical = 50 };

// The levels that are shown, and the file for them: "" is stdout.
struct ResultLog {
  int least_level = static_cast<int>(ResultLevel::kInfo);
  std::string file;
};

enum class ColorMode { kAuto, kAlways, kNever };

// The form of errors and warnings on stderr: for people, or a JSON object a
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
  // Throws InputError if the log's file cannot be written.
  Terminal(ColorMode color, bool quiet, bool verbose, const ResultLog& log = {},
           ErrorFormat errors = ErrorFormat::kText);

  // Returns the text styled for a person if stdout takes colours, else
  // unchanged.
  std::string Bold(std::string_view text) const;
  std::string Dim(std::string_view text) const;
  std::string Green(std::string_view text) const;
  std::string Yellow(std::string_view text) const;

  // Writes a result line to the log. Throws std::runtime_error if it cannot be
  // written.
  void Report(ResultLevel level, std::string_view line) const;
  bool Reports(ResultLevel level) const;

  // Writes to stdout, at once. Throws std::runtime_error if it cannot be
  // written.
  void Print(std::string_view text) const;
  // Writes "acplan: warning: ..." or {"warning": ...} to stderr, unless quiet.
  void Warn(std::string_view text) const;
  // Does the same as WriteError, in the format of this terminal.
  int Complain(std::string_view message, int exit_code) const;
  // Does the same as Complain if errors are JSON, else nothing: for a message
  // that a person reads in the results, in one line or several.
  int Explain(std::string_view message, int exit_code) const;

  // Writes "acplan: ..." to stderr with --verbose.
  void Log(std::string_view text) const;

  // Returns the width of stdout; if it is no terminal, a width that reads well.
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
  std::shared_ptr<std::FILE> log_;  // stdout if there is none
};

// A line on stderr that follows a search. On a terminal it is one line,
// rewritten from the first second on; with --verbose it is a line a second;
// else there is none. Cleared when it goes out of scope.
class ProgressLine {
 public:
  explicit ProgressLine(const Terminal& terminal) : terminal_(terminal) {}
  ~ProgressLine() { Clear(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Shows `text()` if another line is due `seconds` after the search began.
  void Show(double seconds, const std::function<std::string()>& text);
  void Clear();

 private:
  const Terminal& terminal_;
  bool is_shown_ = false;
  double last_seconds_ = 0;
};

// Installs handlers: after a call the first Ctrl-C (SIGINT) or SIGTERM sets the
// flag that this returns; a second one ends the program at once.
const std::atomic<bool>& InterruptFlag();

}  // namespace acplan::cli
