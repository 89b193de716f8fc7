#include "solver/cbc_solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "reference.h"
#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Repetitions;
using ::testing::ElementsAre;

// Expects the invariants of every answer.
void ExpectConsistent(const Milp& milp, const MilpSolution& solution) {
  EXPECT_GE(solution.seconds, 0);
  EXPECT_GE(solution.nodes, 0);
  if (solution.x.empty()) {
    EXPECT_EQ(solution.objective, kInfinity);
    EXPECT_NE(solution.status, MilpStatus::kFeasible);
    return;
  }
  ASSERT_EQ(solution.x.size(), milp.columns.size());
  EXPECT_TRUE(IsFeasible(milp, solution.x));
  for (size_t j = 0; j < solution.x.size(); ++j) {
    const Milp::Column& column = milp.columns[j];
    EXPECT_GE(solution.x[j], column.lower);
    EXPECT_LE(solution.x[j], column.upper);
    if (column.is_integer) {
      EXPECT_EQ(solution.x[j], std::round(solution.x[j]));
    }
  }
  EXPECT_EQ(solution.objective, ObjectiveValue(milp, solution.x));
  EXPECT_LE(solution.bound, solution.objective);
  if (solution.status == MilpStatus::kOptimal) {
    EXPECT_EQ(solution.stopped_by, StoppedBy::kNothing);
    EXPECT_LE(solution.gap, 1e-9);
  }
}

void ExpectMatchesBruteForce(const Milp& milp, bool is_careful = false) {
  SCOPED_TRACE(ToMps(milp));
  const std::optional<double> expected = BruteForce(milp);
  const MilpSolution solution =
      SolveWithCbc(milp, {.limits = {}, .is_careful = is_careful});
  ExpectConsistent(milp, solution);
  if (!expected) {
    EXPECT_EQ(solution.status, MilpStatus::kInfeasible);
    EXPECT_TRUE(solution.x.empty());
    return;
  }
  ASSERT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_NEAR(solution.objective, *expected,
              1e-6 * std::max(1.0, std::abs(*expected)));
}

struct Family {
  std::string name;
  RandomMilpOptions options;
  int count;
};

class RandomPrograms : public ::testing::TestWithParam<Family> {};

TEST_P(RandomPrograms, AgreeWithBruteForce) {
  std::mt19937 random(20240517);
  int infeasible = 0;
  for (int i = 0; i < Repetitions(GetParam().count); ++i) {
    const Milp milp = RandomMilp(random, GetParam().options);
    if (!BruteForce(milp)) ++infeasible;
    ExpectMatchesBruteForce(milp);
    if (HasFailure()) break;
  }
  EXPECT_LT(infeasible, Repetitions(GetParam().count));
}

TEST_P(RandomPrograms, AgreeWithBruteForceWithoutTheDriver) {
  std::mt19937 random(20261122);
  for (int i = 0; i < Repetitions(GetParam().count) && !HasFailure(); ++i) {
    ExpectMatchesBruteForce(RandomMilp(random, GetParam().options),
                            /*is_careful=*/true);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, RandomPrograms,
    ::testing::Values(
        Family{"PureInteger", {.integers = 6, .rows = 4}, 150},
        Family{"PureIntegerFractional",
               {.integers = 6, .rows = 5, .fractional = true},
               150},
        Family{"PureIntegerEqualities",
               {.integers = 6, .rows = 3, .equalities = true},
               150},
        Family{"Mixed", {.integers = 4, .continuous = 2, .rows = 4}, 150},
        Family{"MixedFractional",
               {.integers = 4, .continuous = 2, .rows = 4, .fractional = true},
               150},
        Family{"MixedEqualities",
               {.integers = 3, .continuous = 3, .rows = 3, .equalities = true},
               60},
        Family{"Continuous",
               {.integers = 0, .continuous = 3, .rows = 5, .equalities = true},
               150},
        Family{"Crowded", {.integers = 5, .rows = 12}, 100},
        Family{"TwoRows", {.integers = 2, .rows = 2, .fractional = true}, 400},
        Family{"OneRow", {.integers = 2, .rows = 1, .fractional = true}, 200},
        Family{
            "ThreeRows", {.integers = 2, .rows = 3, .fractional = true}, 200}),
    [](const auto& instance) { return instance.param.name; });

TEST(SolveWithCbc, SolvesTinyAndHugeCosts) {
  std::mt19937 random(5);
  for (const double factor : {1e-9, 1e-6, 1e6, 1e12}) {
    for (int i = 0; i < Repetitions(25); ++i) {
      Milp milp = RandomMilp(
          random,
          {.integers = 5, .continuous = 1, .rows = 4, .fractional = true});
      milp.objective_offset = 0;
      for (Milp::Column& column : milp.columns) column.cost *= factor;
      const std::optional<double> expected = BruteForce(milp);
      const MilpSolution solution = SolveWithCbc(milp);
      ASSERT_EQ(expected.has_value(), solution.status == MilpStatus::kOptimal);
      if (expected) {
        EXPECT_NEAR(solution.objective / factor, *expected / factor, 1e-6);
      }
    }
  }
}

TEST(SolveWithCbc, AgreesWithTheKnapsackTable) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> draw(1, 40);
  for (int round = 0; round < Repetitions(40); ++round) {
    const int items = 12;
    const int capacity = 100;
    std::vector<int> best(capacity + 1, 0);
    Milp milp;
    Milp::Row row{.name = "capacity", .upper = capacity, .terms = {}};
    for (int j = 0; j < items; ++j) {
      const int size = draw(random);
      const int value = draw(random);
      milp.AddColumn({.name = "",
                      .lower = 0,
                      .upper = 1,
                      .cost = -static_cast<double>(value),
                      .is_integer = true});
      row.terms.push_back(
          {.column = j, .coefficient = static_cast<double>(size)});
      for (int c = capacity; c >= size; --c) {
        best[static_cast<size_t>(c)] =
            std::max(best[static_cast<size_t>(c)],
                     best[static_cast<size_t>(c - size)] + value);
      }
    }
    milp.AddRow(row);
    const MilpSolution solution = SolveWithCbc(milp);
    ExpectConsistent(milp, solution);
    EXPECT_EQ(solution.status, MilpStatus::kOptimal);
    EXPECT_EQ(solution.objective, -best.back());
  }
}

TEST(SolveWithCbc, CoversSets) {
  std::mt19937 random(9);
  std::bernoulli_distribution in(0.25);
  for (int round = 0; round < Repetitions(40); ++round) {
    const int sets = 12;
    Milp milp;
    for (int j = 0; j < sets; ++j) {
      milp.AddColumn({.name = "",
                      .lower = 0,
                      .upper = 1,
                      .cost = 1.0 + j % 3,
                      .is_integer = true});
    }
    for (int i = 0; i < 15; ++i) {
      Milp::Row row{.name = "", .lower = 1, .upper = kInfinity, .terms = {}};
      for (int j = 0; j < sets; ++j) {
        if (in(random)) row.terms.push_back({.column = j, .coefficient = 1});
      }
      milp.AddRow(row);
    }
    ExpectMatchesBruteForce(milp);
  }
}

TEST(SolveWithCbc, FindsGeneralIntegersAndFreeColumns) {
  // Least |x - 3.4 y| + y / 100 with 7 <= y <= 10: y = 10, x = 34.
  Milp milp;
  const int x =
      milp.AddColumn({.name = "x", .lower = -kInfinity, .is_integer = true});
  const int y = milp.AddColumn(
      {.name = "y", .lower = 7, .upper = 10, .cost = 0.01, .is_integer = true});
  const int d = milp.AddColumn({.name = "d", .lower = -kInfinity, .cost = 1});
  milp.AddRow(
      {.name = "above", .lower = 0, .terms = {{d, 1}, {x, -1}, {y, 3.4}}});
  milp.AddRow(
      {.name = "below", .lower = 0, .terms = {{d, 1}, {x, 1}, {y, -3.4}}});
  const MilpSolution solution = SolveWithCbc(milp);
  ASSERT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_EQ(solution.x[0], 34);
  EXPECT_EQ(solution.x[1], 10);
  EXPECT_NEAR(solution.objective, 0.1, 1e-9);
}

TEST(SolveWithCbc, SolvesTheEmptyProgram) {
  Milp milp;
  milp.objective_offset = 3;
  MilpSolution solution = SolveWithCbc(milp);
  EXPECT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_EQ(solution.objective, 3);
  EXPECT_EQ(solution.bound, 3);
  milp.AddRow({.name = "impossible", .lower = 1});
  EXPECT_EQ(SolveWithCbc(milp).status, MilpStatus::kInfeasible);
}

TEST(SolveWithCbc, SolvesWithoutRows) {
  Milp milp;
  milp.AddColumn({.name = "", .lower = -2, .upper = 5, .cost = 1});
  milp.AddColumn({.name = "", .lower = 0, .upper = 2.5, .cost = -1});
  milp.AddColumn(
      {.name = "", .lower = 0.5, .upper = 2.5, .cost = -1, .is_integer = true});
  milp.AddColumn({.name = "", .lower = -kInfinity});
  MilpSolution solution = SolveWithCbc(milp);
  EXPECT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_THAT(solution.x, ElementsAre(-2, 2.5, 2, 0));
  milp.columns[3].cost = 1;
  EXPECT_EQ(SolveWithCbc(milp).status, MilpStatus::kUnbounded);
}

TEST(SolveWithCbc, TakesRowsWithoutTermsOrBounds) {
  Milp milp;
  milp.AddColumn(
      {.name = "", .lower = 0, .upper = 9, .cost = -1, .is_integer = true});
  milp.AddRow({.name = "", .lower = -1, .upper = 1});
  milp.AddRow({.name = "", .terms = {{0, 1}}});
  milp.AddRow({.name = "", .upper = 1, .terms = {{0, 0}}});
  milp.AddRow({.name = "", .upper = 7, .terms = {{0, 2}}});
  EXPECT_THAT(SolveWithCbc(milp).x, ElementsAre(3));
  milp.rows[0].lower = 0.5;
  EXPECT_EQ(SolveWithCbc(milp).status, MilpStatus::kInfeasible);
}

TEST(SolveWithCbc, TakesFixedColumns) {
  Milp milp;
  for (int j = 0; j < 3; ++j) {
    milp.AddColumn({.name = "",
                    .lower = 1.0 + j,
                    .upper = 1.0 + j,
                    .cost = 1,
                    .is_integer = j != 1});
  }
  milp.AddRow({.name = "", .upper = 6, .terms = {{0, 1}, {1, 1}, {2, 1}}});
  const MilpSolution solution = SolveWithCbc(milp);
  EXPECT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_THAT(solution.x, ElementsAre(1, 2, 3));
  milp.rows[0].upper = 5;
  EXPECT_EQ(SolveWithCbc(milp).status, MilpStatus::kInfeasible);
}

TEST(SolveWithCbc, TellsIntegersWithoutRoom) {
  Milp milp;
  milp.AddColumn({.name = "", .lower = 0.2, .upper = 0.8, .is_integer = true});
  EXPECT_EQ(SolveWithCbc(milp).status, MilpStatus::kInfeasible);
}

// 2 x + 2 y = 3 has no integer solution, though its relaxation has.
Milp Parity() {
  Milp milp;
  for (int j = 0; j < 2; ++j) {
    milp.AddColumn(
        {.name = "", .lower = 0, .upper = 10, .cost = 1, .is_integer = true});
  }
  milp.AddRow({.name = "", .lower = 3, .upper = 3, .terms = {{0, 2}, {1, 2}}});
  return milp;
}

TEST(SolveWithCbc, ProvesThatThereIsNoSolution) {
  const MilpSolution solution = SolveWithCbc(Parity());
  EXPECT_EQ(solution.status, MilpStatus::kInfeasible);
  EXPECT_EQ(solution.stopped_by, StoppedBy::kNothing);
  EXPECT_TRUE(solution.x.empty());
  EXPECT_EQ(solution.objective, kInfinity);
}

TEST(SolveWithCbc, TellsTheUnbounded) {
  for (const bool is_integer : {false, true}) {
    Milp milp;
    milp.AddColumn({.name = "", .cost = -1, .is_integer = is_integer});
    milp.AddColumn({.name = "", .cost = 0.5, .is_integer = is_integer});
    milp.AddRow({.name = "", .upper = 3.5, .terms = {{0, 1}, {1, -1}}});
    const MilpSolution solution = SolveWithCbc(milp);
    EXPECT_EQ(solution.status, MilpStatus::kUnbounded);
    EXPECT_EQ(solution.bound, -kInfinity);
    EXPECT_TRUE(solution.x.empty());
  }
}

TEST(SolveWithCbc, TellsTheInfeasibleWithAnUnboundedRelaxation) {
  Milp milp = Parity();
  const int free = milp.AddColumn({.name = "", .cost = -1});
  milp.AddRow({.name = "", .lower = 0, .terms = {{free, 1}, {0, 1}}});
  EXPECT_EQ(SolveWithCbc(milp).status, MilpStatus::kInfeasible);
}

TEST(SolveWithCbc, TellsTheInfeasibleLinearProgram) {
  Milp milp;
  milp.AddColumn({.name = "", .lower = -kInfinity, .cost = -1});
  milp.AddRow({.name = "", .lower = 2, .terms = {{0, 1}}});
  milp.AddRow({.name = "", .upper = 1, .terms = {{0, 1}}});
  EXPECT_EQ(SolveWithCbc(milp).status, MilpStatus::kInfeasible);
}

TEST(SolveWithCbc, IsNotFooledByBigM) {
  // y may be 1e-7 within a tolerance, which would let x through for free.
  Milp milp;
  const int x =
      milp.AddColumn({.name = "x", .lower = 0, .upper = 10, .cost = -1});
  const int y = milp.AddColumn(
      {.name = "y", .lower = 0, .upper = 1, .cost = 100, .is_integer = true});
  milp.AddRow({.name = "", .upper = 0, .terms = {{x, 1}, {y, -1e8}}});
  const MilpSolution solution = SolveWithCbc(milp);
  ASSERT_EQ(solution.status, MilpStatus::kOptimal);
  EXPECT_EQ(solution.x[1], 0);
  EXPECT_NEAR(solution.objective, 0, 1e-6);
}

TEST(SolveWithCbc, RejectsTheInvalid) {
  Milp milp = Parity();
  milp.rows[0].terms[0].column = 7;
  EXPECT_THROW(SolveWithCbc(milp), std::invalid_argument);
  for (const auto& spoil : std::vector<void (*)(SearchLimits&)>{
           [](SearchLimits& l) { l.gap = -1; },
           [](SearchLimits& l) { l.gap = std::nan(""); },
           [](SearchLimits& l) { l.node_limit = -1; },
           [](SearchLimits& l) { l.time_limit_s = std::nan(""); }}) {
    CbcOptions options;
    spoil(options.limits);
    EXPECT_THROW(SolveWithCbc(Parity(), options), std::invalid_argument);
  }
}

TEST(SolveWithCbc, IsDeterministic) {
  for (int seed : {-3, 0, 1, 77}) {
    const Milp milp = HardKnapsack(25, 4, 3);
    CbcOptions options;
    options.limits.seed = seed;
    const MilpSolution first = SolveWithCbc(milp, options);
    const MilpSolution second = SolveWithCbc(milp, options);
    EXPECT_EQ(first.status, MilpStatus::kOptimal);
    EXPECT_EQ(first.x, second.x);
    EXPECT_EQ(first.nodes, second.nodes);
    EXPECT_EQ(first.bound, second.bound);
  }
}

TEST(SolveWithCbc, MayBeCalledConcurrently) {
  constexpr int kThreads = 4;
  std::vector<int> wrong(kThreads, 0);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &wrong] {
      std::mt19937 random(static_cast<unsigned>(100 + t));
      for (int i = 0; i < 15; ++i) {
        const Milp milp =
            RandomMilp(random, {.integers = 5, .continuous = 1, .rows = 4});
        const std::optional<double> expected = BruteForce(milp);
        const MilpSolution solution = SolveWithCbc(milp);
        const bool right = expected
                               ? std::abs(solution.objective - *expected) < 1e-5
                               : solution.status == MilpStatus::kInfeasible;
        if (!right) ++wrong[static_cast<size_t>(t)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
}

// The text that a program writes to one of its file descriptors.
class CapturedDescriptor {
 public:
  explicit CapturedDescriptor(int descriptor)
      : descriptor_(descriptor), saved_(dup(descriptor)) {
    std::fflush(nullptr);
    dup2(fileno(file_), descriptor_);
  }
  CapturedDescriptor(const CapturedDescriptor&) = delete;
  CapturedDescriptor& operator=(const CapturedDescriptor&) = delete;
  ~CapturedDescriptor() {
    dup2(saved_, descriptor_);
    close(saved_);
    std::fclose(file_);
  }
  std::string Text() {
    std::fflush(nullptr);
    std::rewind(file_);
    std::string text;
    for (int c = std::fgetc(file_); c != EOF; c = std::fgetc(file_)) {
      text.push_back(static_cast<char>(c));
    }
    return text;
  }

 private:
  std::FILE* file_ = std::tmpfile();
  int descriptor_;
  int saved_;
};

TEST(SolveWithCbc, PrintsNothing) {
  const auto directory = std::filesystem::current_path();
  const auto files = [&directory] {
    return std::distance(std::filesystem::directory_iterator(directory), {});
  };
  const auto files_before = files();
  std::string out;
  std::string err;
  {
    CapturedDescriptor captured_out(1);
    CapturedDescriptor captured_err(2);
    std::mt19937 random(42);
    for (int i = 0; i < 30; ++i) {
      SolveWithCbc(RandomMilp(
          random,
          {.integers = 6, .continuous = 2, .rows = 5, .equalities = true}));
    }
    SolveWithCbc(Parity());
    const Milp hard = HardKnapsack(60, 5, 1);
    CbcOptions options;
    options.limits.node_limit = 200;
    options.warm_start = std::vector<double>(60, 0.0);
    SolveWithCbc(hard, options);
    options = {};
    options.limits.time_limit_s = 0.5;
    SolveWithCbc(hard, options);
    out = captured_out.Text();
    err = captured_err.Text();
  }
  EXPECT_EQ(out, "");
  EXPECT_EQ(err, "");
  EXPECT_EQ(files(), files_before);
}

}  // namespace
}  // namespace acplan::solver
