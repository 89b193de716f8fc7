#include "cli/terminal/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

bool WantsColor(ColorMode mode) {
  if (mode != ColorMode::kAuto) return mode == ColorMode::kAlways;
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  return (!no_color || !*no_color) && term &&
         std::string_view(term) != "dumb" && isatty(STDOUT_FILENO);
}

std::atomic<bool>& Interrupted() {
  static std::atomic<bool> interrupted = false;
  return interrupted;
}

extern "C" void OnSignal(int signal_number) {
  Interrupted().store(true);
  std::signal(signal_number, SIG_DFL);
}

std::string JsonLine(const nlohmann::ordered_json& json) {
  return graph::CompactText(json) + "\n";
}

}  // namespace

void WriteToStderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

int WriteError(ErrorFormat format, std::string_view message, int exit_code) {
  const std::string line = graph::OneLine(message, 4000);
  WriteToStderr(format == ErrorFormat::kJson
                    ? JsonLine({{"error", line}, {"exit_code", exit_code}})
                    : fmt::format("acplan: {}\n", line));
  return exit_code;
}

Terminal::Terminal(ColorMode color, bool quiet, bool verbose,
                   const ResultLog& log, ErrorFormat errors)
    : color_(WantsColor(color)),
      quiet_(quiet),
      verbose_(verbose),
      errors_(errors),
      least_level_(log.least_level) {
  if (log.file.empty()) return;
  log_ = std::shared_ptr<std::FILE>(std::fopen(log.file.c_str(), "w"),
                                    [](std::FILE* file) {
                                      if (file) std::fclose(file);
                                    });
  if (!log_) {
    throw InputError(fmt::format("--log: {}: cannot be written",
                                 graph::OneLine(log.file, 400)));
  }
}

std::string Terminal::Styled(std::string_view code,
                             std::string_view text) const {
  return color_ ? fmt::format("\033[{}m{}\033[0m", code, text)
                : std::string(text);
}
std::string Terminal::Bold(std::string_view text) const {
  return Styled("1", text);
}
std::string Terminal::Dim(std::string_view text) const {
  return Styled("2", text);
}
std::string Terminal::Green(std::string_view text) const {
  return Styled("32", text);
}
std::string Terminal::Yellow(std::string_view text) const {
  return Styled("33", text);
}

void Terminal::Print(std::string_view text) const {
  const size_t written_bytes = std::fwrite(text.data(), 1, text.size(), stdout);
  if (written_bytes != text.size() || std::fflush(stdout) != 0) {
    throw std::runtime_error("cannot write to standard output");
  }
}

bool Terminal::Reports(ResultLevel level) const {
  return static_cast<int>(level) >= least_level_;
}

void Terminal::Report(ResultLevel level, std::string_view line) const {
  if (!Reports(level)) return;
  const std::string text = std::string(line) + "\n";
  if (!log_) {
    Print(text);
    return;
  }
  if (std::fwrite(text.data(), 1, text.size(), log_.get()) != text.size() ||
      std::fflush(log_.get()) != 0) {
    throw std::runtime_error("cannot write the log");
  }
}

void Terminal::Warn(std::string_view text) const {
  if (quiet_) return;
  WriteToStderr(errors_ == ErrorFormat::kJson
                    ? JsonLine({{"warning", text}})
                    : fmt::format("acplan: warning: {}\n", text));
}

int Terminal::Complain(std::string_view message, int exit_code) const {
  return WriteError(errors_, message, exit_code);
}

int Terminal::Explain(std::string_view message, int exit_code) const {
  if (errors_ != ErrorFormat::kJson) return exit_code;
  std::string lines;
  for (size_t begin = 0; begin < message.size();) {
    const size_t end = std::min(message.find('\n', begin), message.size());
    if (begin > 0) lines += "\n";
    lines += graph::OneLine(message.substr(begin, end - begin), 4000);
    begin = end + 1;
  }
  WriteToStderr(JsonLine({{"error", lines}, {"exit_code", exit_code}}));
  return exit_code;
}

void Terminal::Log(std::string_view text) const {
  if (verbose_) WriteToStderr(fmt::format("acplan: {}\n", text));
}

size_t Terminal::Columns() const {
  constexpr size_t kComfortable = 132;
  winsize size{};
  const bool is_known =
      ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : kComfortable;
}

bool Terminal::IsScreen() const { return isatty(STDOUT_FILENO); }

bool Terminal::ShowsProgress() const {
  return !quiet_ && isatty(STDERR_FILENO);
}

void ProgressLine::Show(double seconds,
                        const std::function<std::string()>& text) {
  const bool on_terminal = terminal_.ShowsProgress();
  if ((!on_terminal && !terminal_.verbose()) || seconds < 1) return;
  if (seconds - last_seconds_ < (on_terminal ? 0.2 : 1)) return;
  last_seconds_ = seconds;
  is_shown_ = on_terminal;
  WriteToStderr(on_terminal ? "\r\033[K" + text() : text() + "\n");
}

void ProgressLine::Clear() {
  if (is_shown_) WriteToStderr("\r\033[K");
  is_shown_ = false;
}

const std::atomic<bool>& InterruptFlag() {
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  return Interrupted();
}

}  // namespace acplan::cli
