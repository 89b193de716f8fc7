#include "graph/base/csv_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Complaint(std::string_view text) {
  try {
    ParseCsv(text, "a.csv");
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST(CsvTable, ReadsQuotesCommasAndLinesInCells) {
  const CsvTable table =
      ParseCsv("a,b\r\n\"x, \"\"y\"\"\",1\n\n\"two\nlines\",\n", "a.csv");
  EXPECT_THAT(table.columns, ElementsAre("a", "b"));
  EXPECT_THAT(table.rows, ElementsAre(ElementsAre("x, \"y\"", "1"),
                                      ElementsAre("two\nlines", "")));
  EXPECT_THAT(table.lines, ElementsAre(2, 4));
}

TEST(CsvTable, LastLineNeedsNoEnd) {
  EXPECT_THAT(ParseCsv("a\n1", "a.csv").rows, ElementsAre(ElementsAre("1")));
  EXPECT_THAT(ParseCsv("\xEF\xBB\xBF"
                       "a\n1\n",
                       "a.csv")
                  .columns,
              ElementsAre("a"));
}

TEST(CsvTable, RefusesWhatIsNoTable) {
  EXPECT_THAT(Complaint(""), HasSubstr("a.csv: line 1: expected a line"));
  EXPECT_THAT(Complaint("a,b\n1\n"),
              HasSubstr("line 2: expected 2 cells, found 1"));
  EXPECT_THAT(Complaint("a,b\n1,2,3\n"), HasSubstr("found 3"));
  EXPECT_THAT(Complaint("a,a\n"), HasSubstr("the column \"a\" comes twice"));
  EXPECT_THAT(Complaint("a,\n"), HasSubstr("column 2 has no name"));
  EXPECT_THAT(Complaint("a\n\"x\n"), HasSubstr("line 2: expected a quote"));
  EXPECT_THAT(Complaint("a\n\"x\"y\n"), HasSubstr("expected a comma"));
}

TEST(CsvTable, RowsSayWhereAValueIsWrong) {
  const CsvTable table = ParseCsv("a,b\n4096.0,x\n", "a.csv");
  const CsvRow row(table, 0);
  EXPECT_EQ(row.Whole("a", 1), 4096);
  EXPECT_EQ(row.WholeOr("c", 1, 7), 7);
  const auto complaint = [&](auto read) {
    try {
      read();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_EQ(complaint([&] { row.Whole("b", 1); }),
            "a.csv: line 2: b: expected a whole number of at least 1, found "
            "\"x\"");
  EXPECT_THAT(complaint([&] { row.Whole("a", 5000); }),
              HasSubstr("at least 5000"));
  EXPECT_THAT(complaint([&] { row.Positive("c"); }),
              HasSubstr("c: expected a number above 0, found no such column"));
}

// ParseCsv reads what CsvCell writes, for every text.
TEST(CsvTable, CellsAreReadAsTheyWereWritten) {
  std::mt19937 random(7);
  const std::string letters = "ab,\"\n\r ";
  for (int round = 0; round < 500; ++round) {
    std::string line;
    std::vector<std::string> cells;
    for (int i = 0; i < 3; ++i) {
      std::string cell = "z";
      for (size_t n = random() % 6; n > 0; --n) {
        cell += letters[random() % letters.size()];
      }
      cells.push_back(cell);
      line += (i > 0 ? "," : "") + CsvCell(cell);
    }
    EXPECT_EQ(ParseCsv("a,b,c\n" + line + "\n", "a.csv").rows[0], cells);
  }
}

}  // namespace
}  // namespace acplan::graph
