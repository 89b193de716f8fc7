#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace acplan::solver {

// The small program in which cutting planes find prices. A bound by prices is a function of
// them: the lowest of many planes, some of which are known.
//
//   Data
//     Choices c, each a plane: w_c, the cost, and e_cr, by how much the choice exceeds the room
//     of row r. M, the price of missing room, if any.
//   Variables
//     p_r >= 0   the price of row r
//   Model
//     maximise   the minimum over c of w_c + sum over r of p_r e_cr
//     subject to sum over r of p_r <= M, if given
//
// Its dual is the cheapest mixture of choices that keeps all rows on average. There m is
// the room that is missing in each row:
//
//   minimise   sum over c of s_c w_c, + M m
//   subject to sum over c of s_c e_cr - m <= 0   for every row r
//              sum over c of s_c = 1
//
// Without M there is no m, and there is no answer if no mixture keeps all rows.

struct PricePlane {
  double cost = 0;
  std::vector<double> excess = {};  // indexed by row

  bool operator==(const PricePlane&) const = default;
};

// The point at which the lowest plane is highest, and the mixture there.
struct HighestPoint {
  double height = 0;
  std::vector<double> prices = {};  // indexed by row
  std::vector<double> shares = {};  // indexed by plane; they sum up to 1
  double missing = 0;
};

// Returns the highest point, or nothing if no mixture keeps all rows, or if Clp fails.
std::optional<HighestPoint> FindHighestPoint(
    const std::vector<PricePlane>& planes, size_t rows,
    std::optional<double> price_of_missing = {});

}  // namespace acplan::solver
