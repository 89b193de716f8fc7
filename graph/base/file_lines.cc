#include "graph/base/file_lines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <memory>
#include <string>
#include <system_error>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostLine = size_t{1} << 26;
constexpr size_t kChunk = size_t{1} << 18;

[[noreturn]] void Fail(const fs::path& path, std::string_view message) {
  throw InputError(fmt::format("{}: {}", OneLine(path.string(), 400), message));
}

std::string ErrnoText() { return std::generic_category().message(errno); }

struct Closer {
  void operator()(gzFile file) const { gzclose_r(file); }
};
using File = std::unique_ptr<gzFile_s, Closer>;

File Open(const fs::path& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    Fail(path, fmt::format("cannot be opened: {}", ErrnoText()));
  struct stat status = {};
  const bool is_folder =
      fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
  File file(is_folder ? nullptr : gzdopen(descriptor, "rb"));
  if (!file) {
    close(descriptor);
    if (is_folder) Fail(path, "expected a file, found a folder");
    throw std::bad_alloc();
  }
  gzbuffer(file.get(), kChunk);
  return file;
}

[[noreturn]] void FailToRead(const fs::path& path, gzFile file) {
  int code = Z_OK;
  const std::string message = gzerror(file, &code);
  if (code == Z_MEM_ERROR) throw std::bad_alloc();
  if (code == Z_BUF_ERROR)
    Fail(path, "expected whole gzip data, found its end missing");
  if (code == Z_ERRNO)
    Fail(path, fmt::format("cannot be read: {}", ErrnoText()));
  Fail(path, fmt::format("expected gzip data, found it corrupt ({})", message));
}

}  // namespace

void ForEachLine(const fs::path& path,
                 const std::function<void(std::string_view)>& use) {
  const File file = Open(path);
  const auto give = [&](std::string_view line) {
    if (line.ends_with('\r')) line.remove_suffix(1);
    use(line);
  };
  std::string chunk(kChunk, '\0');
  std::string begun;  // the start of a line that continues in the next chunk
  bool is_empty = true;
  while (true) {
    const int got = gzread(file.get(), chunk.data(), kChunk);
    int code = Z_OK;
    gzerror(file.get(), &code);
    if (got < 0 || code == Z_BUF_ERROR) FailToRead(path, file.get());
    if (is_empty && path.string().ends_with(".gz") && gzdirect(file.get()) != 0)
      Fail(path, "expected gzip data, found something else");
    if (got == 0) break;
    is_empty = false;
    std::string_view rest(chunk.data(), static_cast<size_t>(got));
    for (size_t end = rest.find('\n'); end != std::string_view::npos;
         end = rest.find('\n')) {
      if (begun.empty()) {
        give(rest.substr(0, end));
      } else {
        begun += rest.substr(0, end);
        give(begun);
        begun.clear();
      }
      rest.remove_prefix(end + 1);
    }
    begun += rest;
    if (begun.size() > kMostLine) {
      Fail(path, fmt::format("expected lines of at most {} bytes, found a "
                             "longer one",
                             kMostLine));
    }
  }
  if (is_empty) Fail(path, "expected a file with content, found it empty");
  if (!begun.empty()) give(begun);
}

}  // namespace acplan::graph
