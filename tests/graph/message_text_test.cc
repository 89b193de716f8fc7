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

// C1's CSI starts a sequence that a terminal obeys, and an override of
// direction makes a name look like another one.
TEST(OneLine, EscapesWhatTerminalsObey) {
  EXPECT_EQ(OneLine("a\u009b31m"), "a\\u009b31m");
  EXPECT_EQ(OneLine("\u202egnp.exe\u2066\u200f\u061c"),
            "\\u202egnp.exe\\u2066\\u200f\\u061c");
  EXPECT_EQ(OneLine("a\u2028b\u2029\ufeff"), "a\\u2028b\\u2029\\ufeff");
  EXPECT_EQ(Quoted("\u0085"), "\"\\u0085\"");
  EXPECT_EQ(OneLine("é 中 😀 \u00a0"), "é 中 😀 \u00a0");
}

// A name of letters that nobody sees is another name.
TEST(OneLine, EscapesWhatIsNotSeen) {
  EXPECT_EQ(OneLine("a\U000e0041\U000e007f"), "a\\udb40\\udc41\\udb40\\udc7f");
  EXPECT_EQ(OneLine("\u00ad\u200b\u200d\u2060\u180e"),
            "\\u00ad\\u200b\\u200d\\u2060\\u180e");
  EXPECT_EQ(OneLine("\u3164\ufe0f\U000e0100"), "\\u3164\\ufe0f\\udb40\\udd00");
  EXPECT_EQ(OneLine("\U000110bd\U0001d173"), "\\ud804\\udcbd\\ud834\\udd73");
  EXPECT_EQ(Quoted("\U000e0020"), "\"\\udb40\\udc20\"");
}

TEST(ShowUnseen, LeavesAllElse) {
  EXPECT_EQ(ShowUnseen("a\nb\t\x1b \"\\ é中😀"), "a\nb\t\x1b \"\\ é中😀");
  EXPECT_EQ(ShowUnseen("\u202ea"), "\\u202ea");
  // Bytes that are no UTF-8 are left to others.
  for (const char* text : {"\xf3", "\xf3\xa0", "\xf3\xa0\x81", "\xe2\x80",
                           "\xe2\x80 ", "\xc2", "\xff", "\x80"}) {
    EXPECT_EQ(ShowUnseen(text), text);
  }
}

TEST(HasControls, FindsWhatOneLineEscapes) {
  for (const char* text :
       {"\x7f", "\n", "a\x1b", "\u0080", "é\u009f", "\u061c", "\u200e",
        "\u2029", "\u202a", "\u2069", "\u200b", "\U000e0041"}) {
    EXPECT_TRUE(HasControls(text)) << OneLine(text);
  }
  for (const char* text : {"", "a b", "Größe", "\u00a0", "中", "😀", "\u2070"}) {
    EXPECT_FALSE(HasControls(text)) << text;
  }
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
