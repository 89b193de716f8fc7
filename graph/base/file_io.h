#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// The limit on a file's bytes: more than any profile needs, and less than would exhaust a
// machine's memory when a small gzip file inflates to it, or a pipe does not end.
inline constexpr size_t kMostFileBytes = size_t{1} << 29;
// The same for tables and lists that people write.
inline constexpr size_t kMostListBytes = size_t{1} << 26;

// Takes the next piece of a file's text. Returns false to end reading.
using TextWatch = std::function<bool(std::string_view piece)>;

// Returns the bytes of a file, inflated if they start with gzip's magic number. A file
// whose name ends in ".gz" must be gzip. With `watch`, the text ends with the first piece for
// which that returns false. Throws InputError that begins with the path if the file cannot
// be read, is empty, has more than `most` bytes (before or after inflating), or is not valid
// gzip (truncated, corrupt, trailing garbage, a header without end).
std::string ReadFile(const std::filesystem::path& path,
                     size_t most = kMostFileBytes,
                     const TextWatch& watch = nullptr);

// Hands the text of a file to `use` piece by piece, inflated as ReadFile does, until that
// returns false. Keeps none of it, so that files may be larger than memory. Throws
// InputError as ReadFile does, except that a file's size has no limit.
void ReadPieces(const std::filesystem::path& path, const TextWatch& use);

// Returns whether a path is a pipe or a device, which can be read once, and may not end.
bool IsPipeOrDevice(const std::filesystem::path& path);

// Writes `text` to `path`, gzipped if the name ends in ".gz" (deterministic: no name or
// time inside). The file appears whole or not at all: a file without a name (or a temporary
// neighbour, if the file system has no such files) is written, flushed, named and renamed.
// A symbolic link stays, and the file that it points to is replaced. An existing path that
// is no regular file (a pipe, /dev/null) is written to directly. Throws InputError if the
// folder is missing or not writable, or if the disk is full; no partial file remains.
void WriteFile(const std::filesystem::path& path, std::string_view text);

struct NamedText {
  std::filesystem::path path;
  std::string text;
};

// Writes files as WriteFile does, all or none: no file is named before all are on the disk.
// Paths that are no regular files are written to after all others, and before those are
// named. If a file cannot be renamed at that point, the files before it are already in
// place.
void WriteFiles(const std::vector<NamedText>& files);

// A writer like WriteFile that takes its text piece by piece. Until Commit the file at the
// path is unchanged; pieces that are not committed disappear with the writer.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter();

  void Append(std::string_view text);
  void Commit();

 private:
  friend void WriteFiles(const std::vector<NamedText>& files);
  struct State;
  std::unique_ptr<State> state_;
};

// Throws InputError if WriteFile is bound to fail. Call it before a long computation, so
// that its result is not lost.
void CheckWritable(const std::filesystem::path& path);

}  // namespace acplan::graph
