#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace acplan::graph {

// More than any profile needs, and less than what brings a machine down when a
// small gzip file inflates to it.
inline constexpr size_t kMostFileBytes = size_t{1} << 31;

// The bytes of a file; where they start with gzip's magic number, inflated.
// A file whose name ends in ".gz" must be gzip. Throws InputError, with the
// path first, where the file cannot be read, is empty, has more than `most`
// bytes (before or after inflating), or is not valid gzip (truncated, corrupt,
// trailing garbage).
std::string ReadFile(const std::filesystem::path& path,
                     size_t most = kMostFileBytes);

// Writes `text` to `path`, gzipped where the name ends in ".gz" (deterministic:
// no name or time inside). The file appears whole or not at all: a file without a
// name (a temporary neighbour, where the file system has no such files) is
// written, flushed, named and renamed; a symbolic link stays and what it
// points to is replaced. What exists and is no regular file (a pipe, /dev/null)
// is written to directly. Throws InputError where the folder is missing or not
// writable, or the disk is full; nothing is left behind.
void WriteFile(const std::filesystem::path& path, std::string_view text);

struct NamedText {
  std::filesystem::path path;
  std::string text;
};

// As WriteFile, all of them or none: none is named before all are on the disk.
// What is no regular file is written to when all others are, and before they are
// named. Where one of them cannot be renamed then, those before it are there.
void WriteFiles(const std::vector<NamedText>& files);

// As WriteFile, piece by piece. Until Commit the file is as it was; what is not
// committed goes away with the writer.
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

// Throws InputError where WriteFile is bound to fail: before a long
// computation, so that its result is not lost.
void CheckWritable(const std::filesystem::path& path);

}  // namespace acplan::graph
