#pragma once

#include <cstdint>
#include <vector>

#include "solver/labels/convex_cost.h"

namespace acplan::solver {

// A frontier holds E(D), the least cost of having discarded D bytes so far, as points and
// segments. Having discarded more than D is as good as D, so the cost of at least D bytes
// is that of the next point at or after D: its closure. Bytes are fixed-point integers,
// costs are in ms. All statements about a frontier hold at whole bytes.

// A point (lo == hi) or segment of E.
//
// The move, that is, the unit that was added last, is stored in one of two ways. If
// shifted, the unit discards `value` bytes, a knot of its curve, and the piece is an
// earlier piece moved by that knot: its point at D came from D - value. If not shifted, all
// of the piece came from the one vertex at `value` bytes, and the unit discards D - value,
// which is between two knots. So what a piece says of its points stays true of any part
// that is cut out of it.
struct FrontierPiece {
  int64_t lo, hi;  // bytes discarded
  double cost;     // at lo
  double slope;    // ms for each fixed-point byte, at least 0
  int64_t value;   // see above
  // The caller's history, copied along. It is that of the piece before the move until the
  // caller records the move.
  int32_t label;
  bool shifted;
  // These say whether lo and hi are points from which a next unit may have to start between
  // knots: ends of the exact E, and points where a record binds. Ends that come from
  // cutting away what something else beats are not vertices.
  bool lo_is_vertex, hi_is_vertex;

  double CostAt(int64_t bytes) const {
    return cost + slope * static_cast<double>(bytes - lo);
  }
};
using CostFrontier =
    std::vector<FrontierPiece>;  // lo ascending, disjoint, cost ascending

enum class Take { kBoth, kFirst };

// Returns the lower envelope of two frontiers, where having more bytes is never worse: the
// points of either that no point of the other beats. With kFirst only a's part of it. A
// point beats another if it costs less and has at least as many bytes, or costs as much
// (within kSameCost) and has more; of equal points, a's stays.
CostFrontier LowerEnvelope(const CostFrontier& a, const CostFrontier& b,
                           Take take);

// Drops the points that have discarded less than `need`, for a record that requires it.
void Cut(CostFrontier& frontier, int64_t need);

// Returns the frontier after a unit with this curve, which has ascending bytes and
// nondecreasing ms and is convex: every point of the frontier moved by each knot, and every
// vertex followed by each stretch between two knots. If all ends are vertices, that is the
// infimal convolution of both, except that no point is moved by a knot at 0 bytes: such a
// unit discards nothing, and no unit is as good.
CostFrontier AddCurve(const std::vector<FixedKnot>& curve,
                      const CostFrontier& frontier);

}  // namespace acplan::solver
