#include "graph/base/json_scan.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_fields.h"
#include "tests/graph/test_files.h"

namespace acplan::graph {
namespace {

using Stop = JsonScan::Stop;

bool IsJson(std::string_view text) {
  try {
    ParseJson(text, "f");
    return true;
  } catch (const InputError&) {
    return false;
  }
}

std::string Repeated(std::string_view unit, size_t count) {
  std::string text;
  text.reserve(unit.size() * count);
  for (size_t k = 0; k < count; ++k) text += unit;
  return text;
}

// Returns why and where a scan of an endless text stops.
struct Stopped {
  Stop stop;
  size_t byte;
};
Stopped ScanOf(std::string_view start, std::string_view unit) {
  JsonScan scan;
  scan.Add(start);
  const std::string piece = Repeated(unit, 1'000'000);
  for (int k = 0; k < 200 && scan.Add(piece) == Stop::kGoesOn; ++k) {
  }
  return {scan.Add(""), scan.stop_byte()};
}

TEST(JsonScan, LetsAllJsonPass) {
  for (const char* text :
       {"{}", "[1, -2.5e+3, true, false, null]", " {\"a\\\\\": \"\\\"]}\"}\n",
        "\xEF\xBB\xBF{\"\xC3\xA4\": [[], {}]}", "\"a, b\"", "17", "null"}) {
    EXPECT_TRUE(IsJson(text)) << text;
    JsonScan whole;
    EXPECT_EQ(whole.Add(text), Stop::kGoesOn) << text;
    JsonScan by_byte;
    for (const char c : std::string(text)) {
      EXPECT_EQ(by_byte.Add(std::string(1, c)), Stop::kGoesOn) << text;
    }
  }
}

TEST(JsonScan, StopsOnlyWhereTheParserRefuses) {
  // All texts of up to four of these characters.
  const std::string characters("{}[],:\"1a \\\n\x01", 13);
  std::vector<std::string> texts{""};
  for (size_t k = 0; k < texts.size(); ++k) {
    JsonScan scan;
    const Stop stop = scan.Add(texts[k]);
    if (stop != Stop::kGoesOn) {
      EXPECT_FALSE(IsJson(texts[k].substr(0, scan.stop_byte() + 1)))
          << texts[k];
      EXPECT_FALSE(IsJson(texts[k])) << texts[k];
    } else if (texts[k].size() < 4) {
      for (const char c : characters) texts.push_back(texts[k] + c);
    }
  }
  EXPECT_GT(texts.size(), 5'000u);
}

TEST(JsonScan, EndsTextWithoutAnEnd) {
  EXPECT_EQ(ScanOf("", std::string(1, '\0')).stop, Stop::kZero);
  EXPECT_EQ(ScanOf("{}", std::string(1, '\0')).byte, 2u);
  EXPECT_EQ(ScanOf("", "y\n").byte, 0u);
  EXPECT_EQ(ScanOf("", "{}\n").byte, 3u);
  EXPECT_EQ(ScanOf("", "[").byte, 500u);
  EXPECT_EQ(ScanOf("", "{\"a\":").stop, Stop::kDepth);
  EXPECT_EQ(ScanOf("[1", ",1").stop, Stop::kValues);
  EXPECT_EQ(ScanOf("[\"", "a").stop, Stop::kToken);
  EXPECT_EQ(ScanOf("{\"a\":", " ").stop, Stop::kToken);
  EXPECT_EQ(ScanOf("{}", "\n").stop, Stop::kToken);
}

TEST(JsonScan, ReadingEndsWithIt) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "file";
  for (const std::string& unit : {std::string(2, '\0'), std::string("y\n"),
                                  std::string("[["), std::string("{}")}) {
    const std::string text = Repeated(unit, 1 << 20);
    for (const char* name : {"plain", "packed.gz"}) {
      WriteFile(folder.path() / name, text);
      const std::string read = ReadJsonText(folder.path() / name);
      EXPECT_LE(read.size(), 1u << 19) << unit;
      EXPECT_FALSE(IsJson(read)) << unit;
    }
  }
  EXPECT_FALSE(IsJson(ReadJsonText("/dev/zero")));
}

}  // namespace
}  // namespace acplan::graph
