#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <CoinFinite.hpp>
#include <CoinMpsIO.hpp>
#include <CoinPackedMatrix.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>

#include "reference.h"
#include "solver/milp.h"
#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Repetitions;
using ::testing::HasSubstr;

double FromCoin(double bound) {
  return std::abs(bound) > 1e300 ? std::copysign(kInfinity, bound) : bound;
}

template <typename Reader>
Milp FromReader(const Reader& reader) {
  Milp milp;
  for (int j = 0; j < reader.getNumCols(); ++j) {
    milp.AddColumn({.name = reader.columnName(j),
                    .lower = FromCoin(reader.getColLower()[j]),
                    .upper = FromCoin(reader.getColUpper()[j]),
                    .cost = reader.getObjCoefficients()[j],
                    .is_integer = reader.isInteger(j)});
  }
  const CoinPackedMatrix& matrix = *reader.getMatrixByRow();
  for (int i = 0; i < reader.getNumRows(); ++i) {
    Milp::Row row{.name = reader.rowName(i),
                  .lower = FromCoin(reader.getRowLower()[i]),
                  .upper = FromCoin(reader.getRowUpper()[i]),
                  .terms = {}};
    const auto first = matrix.getVectorFirst(i);
    for (auto k = first; k < first + matrix.getVectorSize(i); ++k) {
      row.terms.push_back({.column = matrix.getIndices()[k],
                           .coefficient = matrix.getElements()[k]});
    }
    milp.AddRow(std::move(row));
  }
  milp.objective_offset = -reader.objectiveOffset();
  return milp;
}

Milp ReadMps(const std::string& text) {
  const std::string path =
      (std::filesystem::temp_directory_path() /
       fmt::format("acplan_{}_{}", getpid(), std::random_device{}()))
          .string();
  std::ofstream(path + ".mps") << text;
  CoinMpsIO reader;
  reader.messageHandler()->setLogLevel(0);
  reader.setInfinity(COIN_DBL_MAX);
  const int errors = reader.readMps(path.c_str(), "mps");
  std::filesystem::remove(path + ".mps");
  EXPECT_EQ(errors, 0) << text;
  return FromReader(reader);
}

std::map<std::string, std::map<std::string, double>> MatrixOf(
    const Milp& milp) {
  std::map<std::string, std::map<std::string, double>> rows;
  for (const Milp::Row& row : milp.rows) {
    for (const Milp::Term& term : row.terms) {
      if (term.coefficient == 0) continue;
      rows[row.name][milp.columns[static_cast<size_t>(term.column)].name] =
          term.coefficient;
    }
  }
  return rows;
}

void ExpectNear(double read, double expected) {
  if (std::isinf(expected)) {
    EXPECT_EQ(read, expected);
  } else {
    EXPECT_NEAR(read, expected, 1e-12 * std::max(1.0, std::abs(expected)));
  }
}

// Compares by name.
void ExpectSame(const Milp& read, const Milp& expected) {
  ASSERT_EQ(read.columns.size(), expected.columns.size());
  ASSERT_EQ(read.rows.size(), expected.rows.size());
  ExpectNear(read.objective_offset, expected.objective_offset);
  std::map<std::string, Milp::Column> columns;
  for (const Milp::Column& column : read.columns) columns[column.name] = column;
  for (const Milp::Column& column : expected.columns) {
    SCOPED_TRACE(column.name);
    ASSERT_TRUE(columns.contains(column.name));
    const Milp::Column& other = columns[column.name];
    ExpectNear(other.lower, column.lower);
    ExpectNear(other.upper, column.upper);
    ExpectNear(other.cost, column.cost);
    EXPECT_EQ(other.is_integer, column.is_integer);
  }
  for (size_t i = 0; i < read.rows.size(); ++i) {
    SCOPED_TRACE(expected.rows[i].name);
    EXPECT_EQ(read.rows[i].name, expected.rows[i].name);
    ExpectNear(read.rows[i].lower, expected.rows[i].lower);
    ExpectNear(read.rows[i].upper, expected.rows[i].upper);
  }
  const auto read_matrix = MatrixOf(read);
  for (const auto& [row, terms] : MatrixOf(expected)) {
    ASSERT_TRUE(read_matrix.contains(row));
    ASSERT_EQ(read_matrix.at(row).size(), terms.size()) << row;
    for (const auto& [column, coefficient] : terms) {
      ASSERT_TRUE(read_matrix.at(row).contains(column));
      ExpectNear(read_matrix.at(row).at(column), coefficient);
    }
  }
}

// Returns a program with every kind of bound.
Milp RandomNamedMilp(std::mt19937& random) {
  const auto draw = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  Milp milp = RandomMilp(random, {.integers = draw(0, 5),
                                  .continuous = draw(1, 5),
                                  .rows = draw(1, 6),
                                  .equalities = true,
                                  .fractional = draw(0, 1) == 1});
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    Milp::Column& column = milp.columns[j];
    column.name = fmt::format("x{}", j);
    switch (draw(0, 6)) {
      case 0:
        column.lower = -kInfinity;
        break;
      case 1:
        column.upper = kInfinity;
        break;
      case 2:
        column.lower = -kInfinity;
        column.upper = kInfinity;
        break;
      case 3:
        column.lower = column.upper;
        break;
      case 4:
        column.lower = 0;
        column.upper = kInfinity;
        break;
      default:
        break;
    }
    if (draw(0, 3) == 0) column.cost = 0;
    if (draw(0, 5) == 0) column.cost /= 3e7;
  }
  for (size_t i = 0; i < milp.rows.size(); ++i) {
    milp.rows[i].name = fmt::format("r{}", i);
    if (milp.rows[i].terms.empty()) {
      milp.rows[i].terms.push_back({.column = 0, .coefficient = 1});
    }
    // Zeros are not written, so they are not read back.
    for (Milp::Term& term : milp.rows[i].terms) {
      if (term.coefficient == 0) term.coefficient = 1e9 / 7;
    }
  }
  return milp;
}

TEST(ToMps, ReadsBackTheSame) {
  std::mt19937 random(11);
  for (int i = 0; i < Repetitions(300); ++i) {
    const Milp milp = RandomNamedMilp(random);
    const std::string text = ToMps(milp);
    SCOPED_TRACE(text);
    ExpectSame(ReadMps(text), milp);
    if (HasFailure()) break;
  }
}

TEST(ToMps, KeepsAllDigits) {
  Milp milp;
  milp.AddColumn({.name = "a", .lower = 0, .upper = 1, .cost = 1.0 / 3});
  EXPECT_THAT(ToMps(milp), HasSubstr("0.3333333333333333"));
}

// Names that the format could not hold are of no account.
TEST(ToMps, NamesColumnsAndRowsByTheirPlaces) {
  Milp milp;
  milp.name = "my program";
  for (const char* name : {"a b", "a+b", "", "1st", "obj", "\xc3\xa4"}) {
    milp.AddColumn({.name = name, .lower = 0, .upper = 3, .cost = 1});
    milp.AddRow({.name = name,
                 .lower = 1,
                 .upper = kInfinity,
                 .terms = {{.column = 0, .coefficient = 2}}});
  }
  const Milp read = ReadMps(ToMps(milp));
  ASSERT_EQ(read.columns.size(), milp.columns.size());
  EXPECT_EQ(read.columns[5].name, "x5");
  EXPECT_EQ(read.rows[5].name, "r5");
}

TEST(ToMps, WritesTheEmptyProgram) {
  EXPECT_THAT(ToMps(Milp{}), HasSubstr("ENDATA"));
}

TEST(ToMps, RejectsTheInvalid) {
  Milp milp;
  milp.AddColumn({.name = "a", .lower = 1, .upper = 0});
  EXPECT_THROW(ToMps(milp), std::invalid_argument);
}

}  // namespace
}  // namespace acplan::solver
