#include "graph/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <system_error>
#include <utility>

#include "graph/input_error.h"
#include "graph/message_text.h"

namespace acplan::graph {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunk = size_t{1} << 18;
constexpr int kGzip = 15 + 16;  // the largest window; gzip's header

[[noreturn]] void Fail(const fs::path& path, std::string_view message) {
  throw InputError(fmt::format("{}: {}", OneLine(path.string(), 400), message));
}

[[noreturn]] void FailErrno(const fs::path& path, std::string_view what,
                            int error) {
  Fail(path,
       fmt::format("{}: {}", what, std::generic_category().message(error)));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Close() { return close(std::exchange(fd_, -1)); }

 private:
  int fd_;
};

bool IsGzName(const fs::path& path) { return path.string().ends_with(".gz"); }

std::string TooLarge(size_t most) {
  return fmt::format("expected at most {} bytes, found more", most);
}

std::string ReadRaw(const fs::path& path, size_t most) {
  FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) FailErrno(path, "cannot be opened", errno);
  struct stat status = {};
  if (fstat(file.get(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) Fail(path, "expected a file, found a folder");
    if (S_ISREG(status.st_mode) &&
        static_cast<uintmax_t>(status.st_size) > most)
      Fail(path, TooLarge(most));
  }
  std::string bytes;
  if (S_ISREG(status.st_mode))
    bytes.reserve(static_cast<size_t>(status.st_size));
  std::string chunk(kChunk, '\0');
  while (true) {
    const ssize_t got = read(file.get(), chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) FailErrno(path, "cannot be read", errno);
    if (got == 0) return bytes;
    bytes.append(chunk, 0, static_cast<size_t>(got));
    if (bytes.size() > most) Fail(path, TooLarge(most));
  }
}

class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, kGzip) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }
  z_stream& stream() { return stream_; }

 private:
  z_stream stream_ = {};
};

bool IsGzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string Inflate(const fs::path& path, std::string_view packed,
                    size_t most) {
  Inflater inflater;
  z_stream& stream = inflater.stream();
  std::string text;
  std::string chunk(kChunk, '\0');
  while (true) {
    const size_t offered = std::min(packed.size(), kChunk);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream.avail_in = static_cast<uInt>(offered);
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    const int result = inflate(&stream, Z_NO_FLUSH);
    packed.remove_prefix(offered - stream.avail_in);
    text.append(chunk, 0, chunk.size() - stream.avail_out);
    if (text.size() > most) Fail(path, TooLarge(most));
    if (result == Z_STREAM_END) {
      if (packed.empty()) return text;
      if (!IsGzip(packed))
        Fail(path, fmt::format(
                       "expected the end of the gzip data, found {} more bytes",
                       packed.size()));
      inflateReset(&stream);
    } else if (result == Z_BUF_ERROR || (result == Z_OK && packed.empty() &&
                                         stream.avail_out == chunk.size())) {
      Fail(path, "expected whole gzip data, found its end missing");
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK) {
      Fail(path, fmt::format("expected gzip data, found it corrupt ({})",
                             stream.msg ? stream.msg : "bad stream"));
    }
  }
}

std::string Deflate(std::string_view text) {
  z_stream stream = {};
  if (deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, 8,
                   Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  std::string packed;
  std::string chunk(kChunk, '\0');
  int result = Z_OK;
  while (result != Z_STREAM_END) {
    const size_t offered = std::min(text.size(), kChunk);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(offered);
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    result = deflate(&stream, offered == text.size() ? Z_FINISH : Z_NO_FLUSH);
    text.remove_prefix(offered - stream.avail_in);
    packed.append(chunk, 0, chunk.size() - stream.avail_out);
  }
  deflateEnd(&stream);
  return packed;
}

// 0, or errno.
int WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return 0;
}

fs::path Neighbour(const fs::path& target, uint64_t number) {
  return target.parent_path() /
         fmt::format(".{}.{:016x}.tmp",
                     target.filename().string().substr(0, 200), number);
}

void WriteDirectly(const fs::path& path, std::string_view bytes) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) FailErrno(path, "cannot be written", errno);
  if (const int error = WriteAll(file.get(), bytes))
    FailErrno(path, "cannot be written", error);
}

void WriteAndRename(const fs::path& path, const fs::path& target,
                    std::string_view bytes) {
  std::random_device random;
  const fs::path temporary =
      Neighbour(target, (uint64_t{random()} << 32) | random());
  FileDescriptor file(
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (file.get() < 0) FailErrno(path, "cannot be written", errno);
  int error = WriteAll(file.get(), bytes);
  if (error == 0 && fsync(file.get()) != 0) error = errno;
  if (file.Close() != 0 && error == 0) error = errno;
  if (error == 0 && rename(temporary.c_str(), target.c_str()) != 0)
    error = errno;
  if (error != 0) {
    unlink(temporary.c_str());
    FailErrno(path, "cannot be written", error);
  }
}

}  // namespace

std::string ReadFile(const fs::path& path, size_t most) {
  std::string bytes = ReadRaw(path, most);
  if (bytes.empty()) Fail(path, "expected a file with content, found it empty");
  if (IsGzip(bytes)) return Inflate(path, bytes, most);
  if (IsGzName(path)) Fail(path, "expected gzip data, found something else");
  return bytes;
}

void WriteFile(const fs::path& path, std::string_view text) {
  const std::string packed = IsGzName(path) ? Deflate(text) : std::string();
  const std::string_view bytes = IsGzName(path) ? packed : text;
  if (path.empty()) Fail(path, "expected the name of a file, found none");

  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) Fail(path, "expected a file, found a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    WriteDirectly(path, bytes);
    return;
  }
  std::error_code error;
  const fs::path resolved = fs::is_symlink(fs::symlink_status(path, ignored))
                                ? fs::canonical(path, error)
                                : path;
  WriteAndRename(path, error ? path : resolved, bytes);
}

void CheckWritable(const fs::path& path) {
  if (path.empty()) Fail(path, "expected the name of a file, found none");
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) Fail(path, "expected a file, found a folder");
  const bool direct = fs::exists(status) && !fs::is_regular_file(status);
  const fs::path folder =
      path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path& written = direct ? path : folder;
  if (access(written.c_str(), W_OK) != 0) {
    FailErrno(path, "cannot be written", errno);
  }
}

}  // namespace acplan::graph
