#pragma once

#include <cstdint>
#include <vector>

#include "problems/remat/remat_problem.h"
#include "solver/milp.h"

namespace acplan::test_support {

// The problem of what a compiled step keeps as a mixed-integer program that counts no plan
// too high: another way to a bound, which knows nothing of states, prices and labels.
//
// Columns, all binary: k_v, v is kept; n_v, backward needs v; r_o, o runs again. Rows:
//   n_v = 1        where backward nodes or the end read v
//   r_o >= n_v - k_v       for what o makes
//   n_v >= r_o             for what o reads
//   bytes(m) <= B          at forward operators and backward nodes m
// Bytes are those that are live whatever is kept, kept values (until backward itself reads
// them for the last time), and in backward what is read there before and after. Left out
// is what is live longer because operators that run again read it, their own moments, and
// the cost of those of stage either.
struct RematMilp {
  solver::Milp program;
  std::vector<int> keep = {};  // a value: its column
};

RematMilp BuildRematMilp(const problems::RematProblem& problem,
                         int64_t budget_bytes);

// What a solution keeps: a buffer, 1 where it is kept.
std::vector<char> KeptBy(const RematMilp& milp,
                         const problems::RematProblem& problem,
                         const std::vector<double>& x);

}  // namespace acplan::test_support
