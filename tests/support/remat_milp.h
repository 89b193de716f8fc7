#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/remat_problem.h"
#include "solver/milp.h"

namespace acplan::test_support {

// The problem of what a compiled step keeps as a mixed-integer program that
// counts no plan too high: another way to a bound, without states, prices and
// labels.
//
// Columns, all binary: k_v, v is kept; n_v, backward needs v; r_o, o runs again.
// Rows:
//   n_v = 1                if backward nodes or the end read v
//   r_o >= n_v - k_v       for values v that o makes
//   n_v >= r_o             for values v that o reads
//   bytes(m) <= B          at forward operators and backward nodes m
// Bytes are those that are live for every choice, those of kept values (until
// backward itself reads them last), and in backward those of values that are
// read both before and after. The program leaves out bytes that live longer
// because operators that run again read them, the moments of those operators,
// and the cost of operators of stage either.
struct RematMilp {
  solver::Milp program;
  std::vector<int> keep = {};  // by value: its column
};

RematMilp BuildRematMilp(const problems::RematProblem& problem,
                         int64_t budget_bytes);

// Returns what a solution keeps: by buffer, 1 if it is kept.
std::vector<char> KeptBy(const RematMilp& milp,
                         const problems::RematProblem& problem,
                         const std::vector<double>& x);

}  // namespace acplan::test_support
