#include "graph/base/message_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace acplan::graph {
namespace {

TEST(OneLine, EscapesControlCharactersOnly) {
  EXPECT_EQ(OneLine("a \"b\" c\\d"), "a \"b\" c\\d");
  EXPECT_EQ(OneLine("a\nb\r\t"), "a\\nb\\r\\t");
  EXPECT_EQ(OneLine(std::string("\0\x1b\x7f", 3)), "\\u0000\\u001b\\u007f");
  EXPECT_EQ(OneLine("Größe"), "Größe");
}

TEST(Quoted, EscapesQuotesToo) {
  EXPECT_EQ(Quoted("a\"b\\"), "\"a\\\"b\\\\\"");
  EXPECT_EQ(Quoted(""), "\"\"");
}

TEST(Quoted, CutsLongTextBetweenCharacters) {
  EXPECT_EQ(Quoted("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(Quoted("aöö", 2), "\"a...\"");
  EXPECT_EQ(Quoted("aöö", 3), "\"aö...\"");
  EXPECT_EQ(Quoted("abc", 3), "\"abc\"");
}

TEST(Quoted, SurvivesWhatIsNotUtf8) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  const std::string quoted = Quoted(all, 1000);
  EXPECT_TRUE(std::ranges::none_of(
      quoted, [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
}

}  // namespace
}  // namespace acplan::graph
