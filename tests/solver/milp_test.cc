#include "solver/milp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

namespace acplan::solver {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string ErrorOf(const Milp& milp) {
  try {
    ValidateMilp(milp);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

Milp Small() {
  Milp milp;
  milp.AddColumn({.name = "a", .lower = 0, .upper = 2, .cost = 1});
  milp.AddColumn(
      {.name = "b", .lower = 0, .upper = 9, .cost = -2, .is_integer = true});
  milp.AddRow({.name = "cap",
               .lower = -kInfinity,
               .upper = 6,
               .terms = {{.column = 0, .coefficient = 1},
                         {.column = 1, .coefficient = 3}}});
  milp.objective_offset = 10;
  return milp;
}

TEST(Milp, AddReturnsIndices) {
  Milp milp;
  EXPECT_EQ(milp.AddColumn({}), 0);
  EXPECT_EQ(milp.AddColumn({}), 1);
  EXPECT_EQ(milp.AddRow({}), 0);
  EXPECT_EQ(milp.AddRow({}), 1);
}

TEST(ValidateMilp, AcceptsTheValid) {
  EXPECT_EQ(ErrorOf(Small()), "");
  EXPECT_EQ(ErrorOf(Milp{}), "");
}

TEST(ValidateMilp, NamesTheColumnOfAnError) {
  for (const auto& [lower, upper] : {std::pair{1.0, 0.0},
                                     {kNan, 1.0},
                                     {0.0, kNan},
                                     {kInfinity, kInfinity},
                                     {-kInfinity, -kInfinity}}) {
    Milp milp = Small();
    milp.columns[1].lower = lower;
    milp.columns[1].upper = upper;
    EXPECT_THAT(ErrorOf(milp),
                AllOf(HasSubstr("column 1 'b'"), HasSubstr("bounds")));
  }
  for (const double cost : {kNan, kInfinity, -kInfinity}) {
    Milp milp = Small();
    milp.columns[0].cost = cost;
    EXPECT_THAT(ErrorOf(milp),
                AllOf(HasSubstr("column 0 'a'"), HasSubstr("cost")));
  }
}

TEST(ValidateMilp, NamesTheRowOfAnError) {
  Milp milp = Small();
  milp.rows[0].lower = 7;
  EXPECT_THAT(ErrorOf(milp),
              AllOf(HasSubstr("row 0 'cap'"), HasSubstr("bounds")));
  milp = Small();
  milp.rows[0].name = "";
  milp.rows[0].upper = kNan;
  EXPECT_THAT(ErrorOf(milp), HasSubstr("row 0:"));
  milp = Small();
  milp.rows[0].terms[1].coefficient = kInfinity;
  EXPECT_THAT(ErrorOf(milp),
              AllOf(HasSubstr("row 0 'cap'"), HasSubstr("column 1 'b'"),
                    HasSubstr("not finite")));
  for (const int column : {-1, 2}) {
    milp = Small();
    milp.rows[0].terms[1].column = column;
    EXPECT_THAT(ErrorOf(milp), AllOf(HasSubstr("row 0 'cap'"),
                                     HasSubstr(std::to_string(column))));
  }
  milp = Small();
  milp.rows[0].terms[1].column = 0;
  EXPECT_THAT(ErrorOf(milp),
              AllOf(HasSubstr("row 0 'cap'"), HasSubstr("twice")));
}

TEST(ValidateMilp, RejectsAnOffsetThatIsNotFinite) {
  Milp milp = Small();
  milp.objective_offset = kNan;
  EXPECT_THAT(ErrorOf(milp), HasSubstr("offset"));
}

TEST(ObjectiveValue, AddsTheOffset) {
  EXPECT_DOUBLE_EQ(ObjectiveValue(Small(), std::vector{0.5, 2.0}), 6.5);
}

TEST(ObjectiveValue, WantsOneValueAColumn) {
  EXPECT_THROW(ObjectiveValue(Small(), std::vector{0.5}),
               std::invalid_argument);
  EXPECT_THROW(LargestViolation(Small(), std::vector{0.5}),
               std::invalid_argument);
  EXPECT_THROW(IsFeasible(Small(), std::vector{0.5, 1.0, 2.0}),
               std::invalid_argument);
}

TEST(LargestViolation, IsTheLargestOfAll) {
  const Milp milp = Small();
  EXPECT_EQ(LargestViolation(milp, std::vector{0.0, 2.0}), 0);
  EXPECT_DOUBLE_EQ(LargestViolation(milp, std::vector{-0.5, 2.0}), 0.5);
  EXPECT_DOUBLE_EQ(LargestViolation(milp, std::vector{2.0, 1.25}), 0.25);
  EXPECT_DOUBLE_EQ(LargestViolation(milp, std::vector{1.0, 3.0}), 4);
  EXPECT_EQ(LargestViolation(milp, std::vector{kNan, 0.0}), kInfinity);
}

TEST(IsFeasible, IsRelativeToTheNumbers) {
  Milp milp = Small();
  milp.rows[0].terms[0].coefficient = 1e9;
  milp.rows[0].upper = 1e9;
  EXPECT_TRUE(IsFeasible(milp, std::vector{1.0, 3.0}));
  EXPECT_FALSE(IsFeasible(milp, std::vector{1.001, 3.0}));
  EXPECT_FALSE(IsFeasible(milp, std::vector{0.0, 3.1}));
  EXPECT_FALSE(IsFeasible(milp, std::vector{kNan, 3.0}));
}

}  // namespace
}  // namespace acplan::solver
