#include "graph/base/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::graph {
namespace {

namespace fs = std::filesystem;

constexpr size_t kChunk = size_t{1} << 18;
// A header may have names and the like, but nobody writes so much of them.
constexpr size_t kMostWithoutText = size_t{1} << 20;
constexpr int kGzip = 15 + 16;  // the largest window, and gzip's header

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

// Returns the bytes of a regular file, 0 for a pipe or a device.
size_t BytesOf(const fs::path& path, const FileDescriptor& file) {
  struct stat status = {};
  if (fstat(file.get(), &status) != 0) return 0;
  if (S_ISDIR(status.st_mode)) Fail(path, "expected a file, found a folder");
  return S_ISREG(status.st_mode) ? static_cast<size_t>(status.st_size) : 0;
}

// Fills `chunk` with the next bytes, as many as are there, but at least two if the file does
// not end before. Returns them.
std::string_view ReadPiece(const fs::path& path, const FileDescriptor& file,
                           std::string& chunk) {
  size_t bytes = 0;
  while (bytes < 2) {
    const ssize_t got =
        read(file.get(), chunk.data() + bytes, chunk.size() - bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) FailErrno(path, "cannot be read", errno);
    if (got == 0) break;
    bytes += static_cast<size_t>(got);
  }
  return std::string_view(chunk).substr(0, bytes);
}

bool IsGzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// The text of gzip data that comes piece by piece.
class Inflater {
 public:
  explicit Inflater(const fs::path& path) : path_(path) {
    if (inflateInit2(&stream_, kGzip) != Z_OK) throw std::bad_alloc();
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  // Hands the text of the next piece to `watch` until that returns false.
  void Add(std::string_view packed, const TextWatch& watch) {
    stream_.next_in =
        reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    stream_.avail_in = static_cast<uInt>(packed.size());
    do {
      if (is_at_end_ && stream_.avail_in > 0) {
        inflateReset(&stream_);
        is_first_ = false;
        is_at_end_ = false;
      }
      stream_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
      stream_.avail_out = static_cast<uInt>(chunk_.size());
      const uInt packed_bytes = stream_.avail_in;
      RequireGzip(inflate(&stream_, Z_NO_FLUSH));
      const size_t bytes = chunk_.size() - stream_.avail_out;
      RequireText(packed_bytes - stream_.avail_in, bytes);
      if (!watch(std::string_view(chunk_).substr(0, bytes))) return;
    } while (stream_.avail_in > 0 || stream_.avail_out == 0);
  }

  // Refuses data that does not end with the last piece.
  void RequireEnd() const {
    if (!is_at_end_) {
      Fail(path_, "expected whole gzip data, found its end missing");
    }
  }

 private:
  // Refuses data whose headers have no end. Members may be without text, too.
  void RequireText(size_t packed_bytes, size_t text_bytes) {
    bytes_without_text_ =
        text_bytes > 0 ? 0 : bytes_without_text_ + packed_bytes;
    if (bytes_without_text_ <= kMostWithoutText) return;
    Fail(path_,
         fmt::format("expected gzip data with text, found {} bytes without any",
                     bytes_without_text_));
  }

  void RequireGzip(int result) {
    is_at_end_ = result == Z_STREAM_END;
    if (result == Z_MEM_ERROR) throw std::bad_alloc();
    // Z_BUF_ERROR: the piece has no further text.
    if (result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR) {
      return;
    }
    // The header of a member begins with two bytes.
    if (!is_first_ && stream_.total_in <= 2) {
      Fail(path_, "expected the end of the gzip data, found more bytes");
    }
    Fail(path_, fmt::format("expected gzip data, found it corrupt ({})",
                            stream_.msg ? stream_.msg : "bad stream"));
  }

  fs::path path_;
  z_stream stream_ = {};
  std::string chunk_ = std::string(kChunk, '\0');
  bool is_first_ = true;  // the member that is read
  bool is_at_end_ = false;
  size_t bytes_without_text_ = 0;
};

// A few kilobytes may hold gigabytes. So the text, of so many bytes, is counted before memory
// is taken for it, and then exactly as much as it needs.
std::string Inflate(const fs::path& path, std::string_view packed,
                    size_t text_bytes) {
  std::string text;
  text.reserve(text_bytes);
  Inflater inflater(path);
  while (!packed.empty() && text.size() < text_bytes) {
    const std::string_view piece = packed.substr(0, kChunk);
    packed.remove_prefix(piece.size());
    inflater.Add(piece, [&](std::string_view inflated) {
      text += inflated.substr(0, text_bytes - text.size());
      return text.size() < text_bytes;
    });
  }
  return text;
}

// A gzip compressor that takes its input piece by piece.
class Deflater {
 public:
  Deflater() {
    if (deflateInit2(&stream_, Z_BEST_COMPRESSION, Z_DEFLATED, kGzip, 8,
                     Z_DEFAULT_STRATEGY) != Z_OK)
      throw std::bad_alloc();
  }
  Deflater(const Deflater&) = delete;
  Deflater& operator=(const Deflater&) = delete;
  ~Deflater() { deflateEnd(&stream_); }

  // Returns the output that is ready after this piece; all of the rest if it is the last
  // one.
  std::string Add(std::string_view text, bool is_last) {
    std::string packed;
    std::string chunk(kChunk, '\0');
    int result = Z_OK;
    do {
      const size_t offered = std::min(text.size(), kChunk);
      stream_.next_in =
          reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
      stream_.avail_in = static_cast<uInt>(offered);
      stream_.next_out = reinterpret_cast<Bytef*>(chunk.data());
      stream_.avail_out = static_cast<uInt>(chunk.size());
      const bool at_end = is_last && offered == text.size();
      result = deflate(&stream_, at_end ? Z_FINISH : Z_NO_FLUSH);
      text.remove_prefix(offered - stream_.avail_in);
      packed.append(chunk, 0, chunk.size() - stream_.avail_out);
    } while (is_last ? result != Z_STREAM_END
                     : !text.empty() || stream_.avail_out == 0);
    return packed;
  }

 private:
  z_stream stream_ = {};
};

// Returns 0, or errno.
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

// The path at which a file is written until it is complete: a neighbour that is renamed
// later, or the target itself if that is no regular file.
struct Destination {
  fs::path target;
  fs::path temporary;  // empty if the target itself is written
};

Destination DestinationOf(const fs::path& path) {
  if (path.empty()) Fail(path, "expected the name of a file, found none");
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) Fail(path, "expected a file, found a folder");
  if (fs::exists(status) && !fs::is_regular_file(status)) return {path, {}};
  std::error_code error;
  const fs::path resolved = fs::is_symlink(fs::symlink_status(path, ignored))
                                ? fs::canonical(path, error)
                                : path;
  const fs::path& target = error ? path : resolved;
  std::random_device random;
  return {target, Neighbour(target, (uint64_t{random()} << 32) | random())};
}

// Opens a file without a name, which disappears when the program ends, however it ends.
// Returns -1 if the file system has no such files, or if they could not be named later.
int OpenUnnamed(const Destination& destination) {
  if (destination.temporary.empty() || access("/proc/self/fd", X_OK) != 0) {
    return -1;
  }
  const fs::path folder = destination.temporary.parent_path();
  return open(folder.empty() ? "." : folder.c_str(),
              O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
}

struct OpenFile {
  int fd = -1;
  bool has_name = false;  // whether it has the neighbour's name
};

OpenFile Open(const Destination& destination) {
  const fs::path& temporary = destination.temporary;
  if (temporary.empty()) {
    return {.fd = open(destination.target.c_str(), O_WRONLY | O_CLOEXEC)};
  }
  if (const int unnamed = OpenUnnamed(destination); unnamed >= 0) {
    return {.fd = unnamed};
  }
  const int named_fd =
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  return {.fd = named_fd, .has_name = named_fd >= 0};
}

// A scope within which no signal ends the program.
class SignalsHeldBack {
 public:
  SignalsHeldBack() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  SignalsHeldBack(const SignalsHeldBack&) = delete;
  SignalsHeldBack& operator=(const SignalsHeldBack&) = delete;
  ~SignalsHeldBack() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_ = {};
};

}  // namespace

void ReadPieces(const fs::path& path, const TextWatch& use) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) FailErrno(path, "cannot be opened", errno);
  BytesOf(path, file);
  std::string chunk(kChunk, '\0');
  std::optional<Inflater> inflater;
  bool is_empty = true;
  bool wants_more = true;
  const TextWatch take = [&](std::string_view piece) {
    wants_more = use(piece);
    return wants_more;
  };
  while (wants_more) {
    const std::string_view piece = ReadPiece(path, file, chunk);
    if (piece.empty()) break;
    if (is_empty && IsGzip(piece)) inflater.emplace(path);
    if (is_empty && !inflater && IsGzName(path)) {
      Fail(path, "expected gzip data, found something else");
    }
    is_empty = false;
    inflater ? inflater->Add(piece, take) : static_cast<void>(take(piece));
  }
  if (is_empty) Fail(path, "expected a file with content, found it empty");
  if (inflater && wants_more) inflater->RequireEnd();
}

bool IsPipeOrDevice(const fs::path& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) &&
         !S_ISDIR(status.st_mode);
}

std::string ReadFile(const fs::path& path, size_t most,
                     const TextWatch& watch) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) FailErrno(path, "cannot be opened", errno);
  const size_t file_bytes = BytesOf(path, file);
  if (file_bytes > most) Fail(path, TooLarge(most));
  std::string bytes;
  // A pipe's text doubles from here on, so that it never copies more than half of `most`.
  bytes.reserve(file_bytes > 0 ? file_bytes : kChunk);
  std::string chunk(kChunk, '\0');
  std::optional<Inflater> inflater;
  size_t text_bytes = 0;
  bool wants_more = true;
  const TextWatch take = [&](std::string_view piece) {
    if (piece.size() > most - text_bytes) Fail(path, TooLarge(most));
    text_bytes += piece.size();
    wants_more = !watch || watch(piece);
    return wants_more;
  };
  while (wants_more) {
    const std::string_view piece = ReadPiece(path, file, chunk);
    if (piece.empty()) break;
    if (bytes.empty() && IsGzip(piece)) inflater.emplace(path);
    if (bytes.empty() && !inflater && IsGzName(path)) {
      Fail(path, "expected gzip data, found something else");
    }
    if (piece.size() > most - bytes.size()) Fail(path, TooLarge(most));
    bytes += piece;
    inflater ? inflater->Add(piece, take) : static_cast<void>(take(piece));
  }
  if (bytes.empty()) Fail(path, "expected a file with content, found it empty");
  if (!inflater) return bytes;
  if (wants_more) inflater->RequireEnd();
  return Inflate(path, bytes, text_bytes);
}

struct FileWriter::State {
  explicit State(const fs::path& file) : State(file, DestinationOf(file)) {}
  State(const fs::path& file, const Destination& to)
      : State(file, to, Open(to)) {}
  State(const fs::path& file, const Destination& to, OpenFile opened)
      : path(file),
        destination(to),
        descriptor(opened.fd),
        has_name(opened.has_name) {
    if (descriptor.get() < 0) FailErrno(path, "cannot be written", errno);
    if (IsGzName(path)) deflater.emplace();
  }

  void Write(std::string_view bytes) {
    if (const int error = WriteAll(descriptor.get(), bytes))
      FailErrno(path, "cannot be written", error);
  }

  bool IsDirect() const { return destination.temporary.empty(); }

  // Writes all bytes to the disk, or to a target that is no regular file.
  void Finish() {
    if (deflater) Write(deflater->Add("", true));
    if ((IsDirect() ? descriptor.Close() : fsync(descriptor.get())) != 0) {
      FailErrno(path, "cannot be written", errno);
    }
  }

  // Gives the neighbour its name. Call this and RenameNeighbour while SignalsHeldBack
  // exists, so that no signal ends the program between the two.
  void NameNeighbour() {
    if (IsDirect()) return;
    const std::string open_file =
        fmt::format("/proc/self/fd/{}", descriptor.get());
    if (!has_name &&
        linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD,
               destination.temporary.c_str(), AT_SYMLINK_FOLLOW) != 0) {
      FailErrno(path, "cannot be written", errno);
    }
    has_name = true;
    if (descriptor.Close() != 0) FailErrno(path, "cannot be written", errno);
  }

  void RenameNeighbour() {
    if (IsDirect()) return;
    if (rename(destination.temporary.c_str(), destination.target.c_str()) !=
        0) {
      FailErrno(path, "cannot be written", errno);
    }
    has_name = false;
  }

  fs::path path;
  Destination destination;
  FileDescriptor descriptor;
  bool has_name = false;  // whether a neighbour has to be removed
  std::optional<Deflater> deflater;
};

FileWriter::FileWriter(const fs::path& path)
    : state_(std::make_unique<State>(path)) {}

FileWriter::~FileWriter() {
  const fs::path& temporary = state_->destination.temporary;
  if (state_->has_name && !temporary.empty()) unlink(temporary.c_str());
}

void FileWriter::Append(std::string_view text) {
  if (text.empty()) return;
  state_->Write(state_->deflater ? state_->deflater->Add(text, false)
                                 : std::string(text));
}

void FileWriter::Commit() {
  state_->Finish();
  const SignalsHeldBack held_back;
  state_->NameNeighbour();
  state_->RenameNeighbour();
}

void WriteFiles(const std::vector<NamedText>& files) {
  using State = FileWriter::State;
  std::vector<std::unique_ptr<FileWriter>> writers;
  for (const NamedText& file : files) {
    writers.push_back(std::make_unique<FileWriter>(file.path));
  }
  for (const bool is_direct : {false, true}) {
    for (size_t i = 0; i < files.size(); ++i) {
      State& state = *writers[i]->state_;
      if (state.IsDirect() != is_direct) continue;
      writers[i]->Append(files[i].text);
      state.Finish();
    }
  }
  const SignalsHeldBack held_back;
  for (const auto& writer : writers) writer->state_->NameNeighbour();
  for (const auto& writer : writers) writer->state_->RenameNeighbour();
}

void WriteFile(const fs::path& path, std::string_view text) {
  FileWriter writer(path);
  writer.Append(text);
  writer.Commit();
}

void CheckWritable(const fs::path& path) {
  if (path.empty()) Fail(path, "expected the name of a file, found none");
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::is_directory(status)) Fail(path, "expected a file, found a folder");
  const bool direct = fs::exists(status) && !fs::is_regular_file(status);
  const fs::path folder =
      path.has_parent_path() ? path.parent_path() : fs::path(".");
  const fs::path& written_path = direct ? path : folder;
  if (access(written_path.c_str(), W_OK) != 0) {
    FailErrno(path, "cannot be written", errno);
  }
}

}  // namespace acplan::graph
