#include "graph/base/file_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/graph/test_files.h"

namespace acplan::graph {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FileLinesTest : public testing::Test {
 protected:
  std::vector<std::string> LinesOf(const std::string& name) const {
    std::vector<std::string> lines;
    ForEachLine(folder_.path() / name,
                [&](std::string_view line) { lines.emplace_back(line); });
    return lines;
  }
  void ExpectRefused(const std::string& name, const std::string& bytes,
                     const std::string& said) const {
    PutBytes(folder_.path() / name, bytes);
    try {
      LinesOf(name);
      ADD_FAILURE() << name;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), HasSubstr(name + ": " + said));
    }
  }

  TemporaryFolder folder_;
};

TEST_F(FileLinesTest, LinesWithoutTheirEnds) {
  PutBytes(folder_.path() / "a", "one\ntwo\r\n\n\r\nlast\r");
  EXPECT_THAT(LinesOf("a"), ElementsAre("one", "two", "", "", "last"));
  PutBytes(folder_.path() / "a", "one\n");
  EXPECT_THAT(LinesOf("a"), ElementsAre("one"));
  PutBytes(folder_.path() / "a", "\n");
  EXPECT_THAT(LinesOf("a"), ElementsAre(""));
}

// Lines that end on either side of a chunk's end, gzipped or not.
TEST_F(FileLinesTest, ManyLines) {
  std::string text;
  std::vector<std::string> lines;
  for (int i = 0; i < 40'000; ++i) {
    lines.push_back(std::string(i % 97, 'x') + std::to_string(i));
    text += lines.back() + "\n";
  }
  lines.push_back(std::string(1'000'000, 'y'));
  text += lines.back();
  for (const std::string name : {"a.csv", "a.csv.gz"}) {
    WriteFile(folder_.path() / name, text);
    EXPECT_EQ(LinesOf(name), lines);
  }
  PutBytes(folder_.path() / "b", ReadFile(folder_.path() / "a.csv"));
  EXPECT_EQ(LinesOf("b"), lines);
}

TEST_F(FileLinesTest, GzipMembersOneAfterAnother) {
  WriteFile(folder_.path() / "a.gz", "one\ntw");
  WriteFile(folder_.path() / "b.gz", "o\nthree\n");
  std::string bytes;
  for (const std::string name : {"a.gz", "b.gz"}) {
    std::ifstream file(folder_.path() / name, std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  PutBytes(folder_.path() / "c.gz", bytes);
  EXPECT_THAT(LinesOf("c.gz"), ElementsAre("one", "two", "three"));
}

TEST_F(FileLinesTest, FilesThatCannotBeRead) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(i * 7919) + "\n";
  WriteFile(folder_.path() / "sound.gz", text);
  std::ifstream file(folder_.path() / "sound.gz", std::ios::binary);
  const std::string packed(std::istreambuf_iterator<char>(file), {});
  std::string corrupt = packed;
  corrupt[packed.size() / 2] ^= 0x55;
  corrupt[packed.size() / 2 + 1] ^= 0x55;
  ExpectRefused("empty", "", "expected a file with content, found it empty");
  ExpectRefused("plain.gz", "hello",
                "expected gzip data, found something else");
  ExpectRefused("cut.gz", packed.substr(0, packed.size() / 2),
                "expected whole gzip data, found its end missing");
  ExpectRefused("cut_trailer.gz", packed.substr(0, packed.size() - 3),
                "expected whole gzip data, found its end missing");
  ExpectRefused("corrupt.gz", corrupt, "expected gzip data, found it corrupt");
  ExpectRefused("long", std::string((size_t{1} << 26) + 1, 'x'),
                "expected lines of at most 67108864 bytes");
  // A header with a name that has no end.
  const std::string header =
      std::string("\x1f\x8b\x08\x08") + std::string(6, '\0');
  ExpectRefused("name.gz", header + std::string(size_t{1} << 21, 'a'),
                "expected gzip data with text, found ");
  EXPECT_THROW(ReadFile(folder_.path() / "name.gz"), InputError);
  EXPECT_THROW(LinesOf("missing"), InputError);
  EXPECT_THROW(LinesOf("."), InputError);
}

}  // namespace
}  // namespace acplan::graph
