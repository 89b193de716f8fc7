#pragma once

#include <cstdint>
#include <vector>

#include "solver/labels/convex_cost.h"

namespace acplan::solver {

// A frontier holds E(D), the least cost of having discarded D bytes so far, as
// points and segments. Having more than D is as good as having D, so the cost
// of having at least D is that of the next point at or after D: its closure.
// Bytes are fixed-point integers, costs ms; whatever is said of a frontier
// holds at whole bytes.

// A point (lo == hi) or segment of E.
//
// The unit that was added last, the move, is kept in one of two ways. Shifted:
// the unit discards `value` bytes, a knot of its curve, and the piece is one of
// before, moved by the knot; its point at D came from D - value. Not shifted:
// all of the piece came from the one vertex at `value` bytes, and the unit
// discards D - value, between two knots. So what a piece says of its points
// stays true of any part that is cut out of it.
struct FrontierPiece {
  int64_t lo, hi;  // bytes discarded
  double cost;     // at lo
  double slope;    // ms a fixed-point byte, at least 0
  int64_t value;   // see above
  int32_t label;   // history: the caller's, copied along; of the piece before
                   // the move until the caller writes the move down
  bool shifted;
  // Whether lo and hi are points from which a next unit may have to start
  // between knots: ends of the exact E, and where a record binds. Ends that
  // come from cutting away what something else beats are not.
  bool lo_is_vertex, hi_is_vertex;

  double CostAt(int64_t bytes) const {
    return cost + slope * static_cast<double>(bytes - lo);
  }
};
using CostFrontier =
    std::vector<FrontierPiece>;  // lo ascending, disjoint, cost ascending

enum class Take { kBoth, kFirst };

// The lower envelope of two frontiers, where having more bytes is never worse:
// what no point of the other beats. With kFirst only a's part of it. A point
// beats another where it costs less and has at least as many bytes, or costs as
// much (within kSameCost) and has more; of equal points, a's stays.
CostFrontier LowerEnvelope(const CostFrontier& a, const CostFrontier& b,
                           Take take);

// Drops what has discarded less than `need`, for a record that asks for it.
void Cut(CostFrontier& frontier, int64_t need);

// The frontier after a unit with this curve: bytes ascending, ms nondecreasing,
// convex. Every point of the frontier moved by each knot, and every vertex
// followed by each stretch between two knots. Where all ends are vertices that
// is the infimal convolution of both; not, though, moved by a knot at 0 bytes,
// which discards nothing: no unit is as good.
CostFrontier AddCurve(const std::vector<FixedKnot>& curve,
                      const CostFrontier& frontier);

}  // namespace acplan::solver
