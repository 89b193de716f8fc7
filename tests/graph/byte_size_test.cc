#include "graph/base/byte_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct GoodSize {
  std::string text;
  int64_t bytes;
};

TEST(ParseByteSize, AcceptsNumbersWithUnitsAndWholeBytes) {
  const std::vector<GoodSize> rows = {
      {"1", 1},
      {"4096", 4096},
      {"1.6GiB", 1717986918},
      {"1.6 GiB", 1717986918},
      {"1.6\tGiB", 1717986918},
      {"1600MB", 1'600'000'000},
      {" 5 ", 5},
      {"7B", 7},
      {"1kB", 1000},
      {"1KiB", 1024},
      {"1MB", 1'000'000},
      {"1MiB", 1'048'576},
      {"1GB", 1'000'000'000},
      {"1GiB", 1'073'741'824},
      {"1TB", 1'000'000'000'000},
      {"1TiB", 1'099'511'627'776},
      {"1PB", 1'000'000'000'000'000},
      {"1PiB", 1'125'899'906'842'624},
      {".8GiB", 858993459},
      {"0.8GiB", 858993459},
      {"2.4GiB", 2576980377},
      {"0.001kB", 1},
      {"1.9B", 1},
      {"1.9999999999999999999999999999999999999kB", 1999},
      {"0.0009765625KiB", 1},
      {"000012", 12},
      {"4611686018427387904", int64_t{1} << 62},
      {"4096PiB", int64_t{1} << 62},
      {"0.1PiB", 112589990684262},
      {"0.333333333333333333333333333333PB", 333333333333333},
  };
  for (const GoodSize& row : rows)
    EXPECT_EQ(ParseByteSize(row.text, "--budget"), row.bytes) << row.text;
}

struct BadSize {
  std::string text;
  std::string reason;
};

TEST(ParseByteSize, RefusesEverythingElse) {
  const std::vector<BadSize> rows = {
      {"", "no number"},
      {"   ", "no number"},
      {"GiB", "no number"},
      {".", "no digit after the point"},
      {"1.", "no digit after the point"},
      {"1.GiB", "no digit after the point"},
      {"1.6", "a fraction needs a unit"},
      {"1.0", "a fraction needs a unit"},
      {"0", "less than one byte"},
      {"0GiB", "less than one byte"},
      {"0.9B", "less than one byte"},
      {"-1GiB", "a size is positive"},
      {"-0", "a size is positive"},
      {"+5", "no number"},
      {"nan", "no number"},
      {"inf", "no number"},
      {"1e9", "exponents are not supported"},
      {"1E+9", "exponents are not supported"},
      {"1.5e3kB", "exponents are not supported"},
      {"0x10", "unknown unit \"x10\""},
      {"1 gib", "did you mean GiB?"},
      {"1 KB", "did you mean kB?"},
      {"1gb", "did you mean GB?"},
      {"1G", "did you mean GB or GiB?"},
      {"1k", "did you mean kB or KiB?"},
      {"1 byte", "did you mean B?"},
      {"1 furlong", "known are B, kB, MB"},
      {"1,6GiB", "unknown unit \",6GiB\""},
      {"1 000", "unknown unit"},
      {"1.6.1GiB", "unknown unit"},
      {"1GiB!", "unknown unit"},
      {"4611686018427387905", "more than 4 EiB"},
      {"4097PiB", "more than 4 EiB"},
      {"4096.000000000001PiB", "more than 4 EiB"},
      {"99999999999999999999999999999999", "more than 4 EiB"},
      {"9223372036854775807PiB", "more than 4 EiB"},
  };
  for (const BadSize& row : rows) {
    try {
      ParseByteSize(row.text, "--budget");
      ADD_FAILURE() << "accepted " << row.text;
    } catch (const InputError& error) {
      const std::string message = error.what();
      EXPECT_THAT(message, testing::StartsWith("--budget: expected a size"));
      EXPECT_THAT(message, HasSubstr("found \"" + row.text + "\""));
      EXPECT_THAT(message, HasSubstr(row.reason)) << row.text;
      EXPECT_THAT(message, Not(HasSubstr("\n")));
    }
  }
}

TEST(ParseByteSize, KeepsHostileTextOnOneShortLine) {
  const std::string text = "1\n" + std::string(5000, 'x') + "\xff\x01";
  try {
    ParseByteSize(text, "--budget");
    ADD_FAILURE();
  } catch (const InputError& error) {
    const std::string message = error.what();
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_LT(message.size(), 400u);
  }
}

struct Display {
  int64_t bytes;
  std::string kib, mib, gib, other;
};

// From Python: f"{b / 2**20:.2f} MiB" and so on.
TEST(DisplayBytes, EqualsPython) {
  const std::vector<Display> rows = {
      {0, "0.00 KiB", "0.00 MiB", "0.00 GiB", "0.00 bytes"},
      {1, "0.00 KiB", "0.00 MiB", "0.00 GiB", "1.00 bytes"},
      {128, "0.12 KiB", "0.00 MiB", "0.00 GiB", "128.00 bytes"},
      {384, "0.38 KiB", "0.00 MiB", "0.00 GiB", "384.00 bytes"},
      {512, "0.50 KiB", "0.00 MiB", "0.00 GiB", "512.00 bytes"},
      {640, "0.62 KiB", "0.00 MiB", "0.00 GiB", "640.00 bytes"},
      {896, "0.88 KiB", "0.00 MiB", "0.00 GiB", "896.00 bytes"},
      {1023, "1.00 KiB", "0.00 MiB", "0.00 GiB", "1023.00 bytes"},
      {5242, "5.12 KiB", "0.00 MiB", "0.00 GiB", "5242.00 bytes"},
      {5243, "5.12 KiB", "0.01 MiB", "0.00 GiB", "5243.00 bytes"},
      {5244, "5.12 KiB", "0.01 MiB", "0.00 GiB", "5244.00 bytes"},
      {10486, "10.24 KiB", "0.01 MiB", "0.00 GiB", "10486.00 bytes"},
      {15729, "15.36 KiB", "0.02 MiB", "0.00 GiB", "15729.00 bytes"},
      {131072, "128.00 KiB", "0.12 MiB", "0.00 GiB", "131072.00 bytes"},
      {393216, "384.00 KiB", "0.38 MiB", "0.00 GiB", "393216.00 bytes"},
      {655360, "640.00 KiB", "0.62 MiB", "0.00 GiB", "655360.00 bytes"},
      {917504, "896.00 KiB", "0.88 MiB", "0.00 GiB", "917504.00 bytes"},
      {1048576, "1024.00 KiB", "1.00 MiB", "0.00 GiB", "1048576.00 bytes"},
      {1315962, "1285.12 KiB", "1.25 MiB", "0.00 GiB", "1315962.00 bytes"},
      {1315963, "1285.12 KiB", "1.26 MiB", "0.00 GiB", "1315963.00 bytes"},
      {1572864, "1536.00 KiB", "1.50 MiB", "0.00 GiB", "1572864.00 bytes"},
      {2684848128, "2621922.00 KiB", "2560.47 MiB", "2.50 GiB",
       "2684848128.00 bytes"},
      {2583888896, "2523329.00 KiB", "2464.19 MiB", "2.41 GiB",
       "2583888896.00 bytes"},
      {1717986918, "1677721.60 KiB", "1638.40 MiB", "1.60 GiB",
       "1717986918.00 bytes"},
      {9007199254740992, "8796093022208.00 KiB", "8589934592.00 MiB",
       "8388608.00 GiB", "9007199254740992.00 bytes"},
      {int64_t{1} << 62, "4503599627370496.00 KiB", "4398046511104.00 MiB",
       "4294967296.00 GiB", "4611686018427387904.00 bytes"},
      {INT64_MAX, "9007199254740992.00 KiB", "8796093022208.00 MiB",
       "8589934592.00 GiB", "9223372036854775808.00 bytes"},
      {-1, "-0.00 KiB", "-0.00 MiB", "-0.00 GiB", "-1.00 bytes"},
      {-1048576, "-1024.00 KiB", "-1.00 MiB", "-0.00 GiB", "-1048576.00 bytes"},
      {-131072, "-128.00 KiB", "-0.12 MiB", "-0.00 GiB", "-131072.00 bytes"},
      {134217728, "131072.00 KiB", "128.00 MiB", "0.12 GiB",
       "134217728.00 bytes"},
      {402653184, "393216.00 KiB", "384.00 MiB", "0.38 GiB",
       "402653184.00 bytes"},
      {671088640, "655360.00 KiB", "640.00 MiB", "0.62 GiB",
       "671088640.00 bytes"},
  };
  for (const Display& row : rows) {
    EXPECT_EQ(DisplayBytes(row.bytes, "KiB"), row.kib);
    EXPECT_EQ(DisplayBytes(row.bytes), row.mib);
    EXPECT_EQ(DisplayBytes(row.bytes, "MiB"), row.mib);
    EXPECT_EQ(DisplayBytes(row.bytes, "GiB"), row.gib);
    EXPECT_EQ(DisplayBytes(row.bytes, "B"), row.other);
    EXPECT_EQ(DisplayBytes(row.bytes, "TiB"), row.other);
    EXPECT_EQ(DisplayBytes(row.bytes, ""), row.other);
  }
}

TEST(FormatBytes, PicksTheLargestUnitThatLeavesOne) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(17), "17 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.00 KiB");
  EXPECT_EQ(FormatBytes(512 << 20), "512.00 MiB");
  EXPECT_EQ(FormatBytes(15506239488), "14.44 GiB");
  EXPECT_EQ(FormatBytes(int64_t{3} << 40), "3.00 TiB");
  EXPECT_EQ(FormatBytes(int64_t{1} << 60), "1024.00 PiB");
  EXPECT_EQ(FormatBytes(-17), "-17 B");
  EXPECT_EQ(FormatBytes(-(int64_t{3} << 19)), "-1.50 MiB");
  EXPECT_EQ(FormatBytes(INT64_MIN), "-8192.00 PiB");
}

TEST(ByteRate, IsASizeForEachSecond) {
  EXPECT_EQ(ParseByteRate("25GB/s", "--offload"), 25'000'000'000);
  EXPECT_EQ(ParseByteRate(" 1.5 KiB /s ", "--offload"), 1'536);
}

TEST(ByteRate, ComplaintsSpeakOfRates) {
  for (const auto& [text, reason] :
       std::vector<std::pair<std::string, std::string>>{
           {"0GB/s", ": less than one byte a second"},
           {"-1GB/s", ": a rate is positive"},
           {"9999PB/s", ": more than 4 EiB/s"},
           {"/s", ": no number"},
           {"25gb/s", ": unknown unit \"gb\"; did you mean GB?"},
           {"25GB", ""},
           {"", ""}}) {
    try {
      ParseByteRate(text, "--offload");
      ADD_FAILURE() << text;
    } catch (const InputError& error) {
      EXPECT_EQ(error.what(),
                "--offload: expected a rate such as 25GB/s, found \"" + text +
                    "\"" + reason);
    }
  }
}

}  // namespace
}  // namespace acplan::graph
