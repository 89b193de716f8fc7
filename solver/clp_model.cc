#include "solver/clp_model.h"

#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <algorithm>
#include <cmath>

namespace acplan::solver {
namespace {

double ToCoin(double bound) {
  return std::isinf(bound) ? std::copysign(COIN_DBL_MAX, bound) : bound;
}

}  // namespace

double CostFactor(const Milp& milp) {
  double largest = 0;
  for (const Milp::Column& column : milp.columns) {
    largest = std::max(largest, std::abs(column.cost));
  }
  return largest > 0 ? std::exp2(15 - std::ilogb(largest)) : 1;
}

ClpModel::ClpModel(const Milp& milp, double cost_factor) {
  for (const Milp::Row& row : milp.rows) {
    for (const Milp::Term& term : row.terms) {
      rows.push_back(static_cast<int>(row_lower.size()));
      columns.push_back(term.column);
      coefficients.push_back(term.coefficient);
    }
    row_lower.push_back(ToCoin(row.lower));
    row_upper.push_back(ToCoin(row.upper));
  }
  for (const Milp::Column& column : milp.columns) {
    lower.push_back(ToCoin(column.lower));
    upper.push_back(ToCoin(column.upper));
    cost.push_back(column.cost * cost_factor);
  }
}

CoinPackedMatrix ClpModel::Matrix() const {
  CoinPackedMatrix matrix(/*colordered=*/true, rows.data(), columns.data(),
                          coefficients.data(),
                          static_cast<CoinBigIndex>(coefficients.size()));
  matrix.setDimensions(static_cast<int>(row_lower.size()),
                       static_cast<int>(lower.size()));
  return matrix;
}

LpStatus StatusOf(const ClpSimplex& clp) {
  switch (clp.status()) {
    case 0:
      return LpStatus::kOptimal;
    case 1:
      return LpStatus::kInfeasible;
    case 2:
      return LpStatus::kUnbounded;
    case 3:
    case 5:
      return LpStatus::kStopped;
    default:
      return LpStatus::kFailed;
  }
}

bool IsDoubtful(LpStatus status) {
  return status == LpStatus::kInfeasible || status == LpStatus::kUnbounded ||
         status == LpStatus::kFailed;
}

}  // namespace acplan::solver
