#include "graph/base/file_io.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <iterator>
#include <random>
#include <string>

#include "graph/base/input_error.h"
#include "tests/graph/test_files.h"

namespace acplan::graph {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

class FileIo : public ::testing::Test {
 protected:
  fs::path Path(const std::string& name) const { return folder_.path() / name; }

  // Returns the complaint of ReadFile about a file with these bytes.
  std::string ReadError(const std::string& name, std::string_view bytes) const {
    PutBytes(Path(name), bytes);
    return ReadError(Path(name));
  }
  static std::string ReadError(const fs::path& path,
                               size_t most = kMostFileBytes) {
    try {
      ReadFile(path, most);
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }
  static std::string WriteError(const fs::path& path) {
    try {
      WriteFile(path, "text");
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::string Gzipped(std::string_view text) const {
    WriteFile(Path("scratch.gz"), text);
    std::ifstream file(Path("scratch.gz"), std::ios::binary);
    std::string bytes(std::istreambuf_iterator<char>(file), {});
    fs::remove(Path("scratch.gz"));
    return bytes;
  }

  TemporaryFolder folder_;
};

std::string RandomText(size_t size) {
  std::mt19937 random(1);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST_F(FileIo, RoundTrips) {
  for (const std::string& text :
       {std::string("x"), RandomText(1 << 20), std::string(3 << 20, 'a'),
        std::string("\0\n", 2)}) {
    for (const char* name : {"plain", "packed.gz"}) {
      WriteFile(Path(name), text);
      EXPECT_EQ(ReadFile(Path(name)), text);
    }
  }
  EXPECT_THAT(folder_.FileNames(),
              testing::UnorderedElementsAre("plain", "packed.gz"));
}

TEST_F(FileIo, InflatesByContentWhateverTheName) {
  PutBytes(Path("plain"), Gzipped("hello"));
  EXPECT_EQ(ReadFile(Path("plain")), "hello");
}

TEST_F(FileIo, TextOfGzipTakesItsOwnSizeAlone) {
  const std::string text((size_t{5} << 18) + 1, ' ');
  PutBytes(Path("plain"), Gzipped(text));
  const std::string read = ReadFile(Path("plain"));
  EXPECT_EQ(read, text);
  EXPECT_LE(read.capacity(), text.size() + 64);
  EXPECT_THROW(ReadFile(Path("plain"), text.size() - 1), InputError);
}

TEST_F(FileIo, GzipIsDeterministic) {
  const std::string bytes = Gzipped("hello");
  EXPECT_EQ(bytes, Gzipped("hello"));
  EXPECT_EQ(bytes.substr(4, 4), std::string(4, '\0'));
}

TEST_F(FileIo, ReadsSeveralGzipMembers) {
  PutBytes(Path("two.gz"), Gzipped("hel") + Gzipped("lo"));
  EXPECT_EQ(ReadFile(Path("two.gz")), "hello");
}

TEST_F(FileIo, RefusesBadGzip) {
  const std::string good = Gzipped(RandomText(1000));
  EXPECT_THAT(ReadError("a.gz", "{}"), HasSubstr("expected gzip data"));
  EXPECT_THAT(ReadError("b.gz", good + "junk"), HasSubstr("found more bytes"));
  EXPECT_THAT(ReadError("c", "\x1f\x8b"), HasSubstr("found its end missing"));
  for (size_t size = 2; size < good.size(); size += 37)
    EXPECT_THAT(ReadError("d.gz", good.substr(0, size)),
                HasSubstr("found its end missing"))
        << size;
  std::string corrupt = good;
  corrupt[corrupt.size() - 6] ^= 1;
  EXPECT_THAT(ReadError("e.gz", corrupt), HasSubstr("corrupt"));
  EXPECT_THAT(ReadError("f.gz", good + good.substr(0, 15)),
              HasSubstr("found its end missing"));
}

TEST_F(FileIo, RefusesWhatInflatesBeyondTheLimit) {
  const std::string bomb = Gzipped(std::string(10 << 20, 'a'));
  EXPECT_LT(bomb.size(), 20'000u);
  PutBytes(Path("bomb.gz"), bomb);
  EXPECT_THAT(ReadError(Path("bomb.gz"), 1 << 20),
              HasSubstr("expected at most 1048576 bytes, found more"));
  PutBytes(Path("big"), std::string(2000, 'a'));
  EXPECT_THAT(ReadError(Path("big"), 1999),
              HasSubstr("expected at most 1999 bytes"));
  EXPECT_EQ(ReadFile(Path("big"), 2000).size(), 2000u);
}

TEST_F(FileIo, TextEndsWithTheFirstPieceThatIsNotWanted) {
  const std::string text = std::string(1 << 20, 'a') + "b";
  PutBytes(Path("plain"), text);
  PutBytes(Path("packed"), Gzipped(text));
  for (const char* name : {"plain", "packed"}) {
    const auto read = [&](size_t most) {
      size_t bytes = 0;
      return ReadFile(Path(name), kMostFileBytes, [&](std::string_view piece) {
        bytes += piece.size();
        return bytes < most;
      });
    };
    const std::string start = read(300'000);
    EXPECT_GE(start.size(), 300'000u);
    EXPECT_LT(start.size(), 700'000u);
    EXPECT_TRUE(text.starts_with(start));
    EXPECT_EQ(read(2 << 20), text);
  }
}

TEST_F(FileIo, NamesTheFileInEveryComplaint) {
  EXPECT_THAT(ReadError(Path("missing.json")),
              AllOf(StartsWith(Path("missing.json").string() + ": "),
                    HasSubstr("No such file")));
  EXPECT_THAT(ReadError(folder_.path()), HasSubstr("found a folder"));
  EXPECT_THAT(ReadError("empty", ""), HasSubstr("found it empty"));
  EXPECT_THAT(ReadError("empty.gz", ""), HasSubstr("found it empty"));
  EXPECT_THAT(ReadError(fs::path()), HasSubstr("cannot be opened"));
  EXPECT_THAT(ReadError(Path("a\nb")), Not(HasSubstr("\n")));
  EXPECT_THAT(ReadError(Path(std::string(5000, 'x'))), HasSubstr("too long"));
}

TEST_F(FileIo, RefusesAFileWithoutPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read everything";
  PutBytes(Path("secret"), "x");
  fs::permissions(Path("secret"), fs::perms::none);
  EXPECT_THAT(ReadError(Path("secret")), HasSubstr("Permission denied"));
}

TEST_F(FileIo, ReplacesAFile) {
  WriteFile(Path("plan.json"), "old and long");
  WriteFile(Path("plan.json"), "new");
  EXPECT_EQ(ReadFile(Path("plan.json")), "new");
  EXPECT_THAT(folder_.FileNames(), ElementsAre("plan.json"));
}

TEST_F(FileIo, LeavesNothingBehindOnFailure) {
  EXPECT_THAT(WriteError(Path("missing/plan.json")), HasSubstr("No such file"));
  fs::create_directory(Path("folder"));
  EXPECT_THAT(WriteError(Path("folder")), HasSubstr("found a folder"));
  PutBytes(Path("file"), "x");
  EXPECT_THAT(WriteError(Path("file/plan.json")),
              HasSubstr("cannot be written"));
  EXPECT_THAT(WriteError(Path(std::string(300, 'x'))),
              HasSubstr("cannot be written"));
  EXPECT_THAT(WriteError(fs::path()), HasSubstr("expected the name of a file"));
  EXPECT_THAT(WriteError("/proc/acplan-plan.json"),
              HasSubstr("cannot be written"));
  EXPECT_THAT(folder_.FileNames(),
              testing::UnorderedElementsAre("folder", "file"));
  EXPECT_TRUE(fs::is_empty(Path("folder")));
}

TEST_F(FileIo, LeavesNothingBehindWhereTheProgramIsKilled) {
  const int unnamed = open(folder_.path().c_str(), O_TMPFILE | O_WRONLY, 0666);
  if (unnamed < 0) GTEST_SKIP() << "the file system has no files without names";
  close(unnamed);
  WriteFile(Path("f"), "old");
  const pid_t child = fork();
  if (child == 0) {
    FileWriter writer(Path("f"));
    writer.Append("new");
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(ReadFile(Path("f")), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(FileIo, WritesThroughASymbolicLink) {
  PutBytes(Path("real"), "old");
  fs::create_symlink(Path("real"), Path("link"));
  WriteFile(Path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_EQ(ReadFile(Path("real")), "new");
}

TEST_F(FileIo, WritesIntoWhatIsNoRegularFile) {
  WriteFile("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(WriteError("/dev/full"), HasSubstr("No space left"));
}

TEST_F(FileIo, WritesAllOrNone) {
  PutBytes(Path("a"), "old");
  const auto error = [&](const std::vector<NamedText>& files) -> std::string {
    try {
      WriteFiles(files);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_THAT(error({{Path("a"), "new"}, {"/dev/full", "new"}}),
              HasSubstr("No space left"));
  EXPECT_THAT(error({{"/dev/full", "new"}, {Path("a"), "new"}}),
              HasSubstr("No space left"));
  EXPECT_THAT(error({{Path("a"), "new"}, {Path("no/b"), "new"}}),
              HasSubstr("No such file"));
  EXPECT_EQ(ReadFile(Path("a")), "old");
  EXPECT_THAT(folder_.FileNames(), ElementsAre("a"));
  EXPECT_EQ(error({}), "accepted");
  EXPECT_EQ(error({{Path("a"), "new"}, {Path("b.gz"), "b"}}), "accepted");
  EXPECT_EQ(ReadFile(Path("a")) + ReadFile(Path("b.gz")), "newb");
}

TEST_F(FileIo, RespectsTheUmask) {
  const mode_t before = umask(027);
  WriteFile(Path("plan.json"), "x");
  umask(before);
  EXPECT_EQ(fs::status(Path("plan.json")).permissions(), fs::perms(0640));
}

}  // namespace
}  // namespace acplan::graph
