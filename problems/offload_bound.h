#pragma once

#include <cstdint>

#include "graph/trace/trace.h"
#include "problems/offload/movables.h"
#include "problems/plan/plan.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::problems {

// A bound on plans that offload.
//
// Bytes that a step has moved to the host are sent before a moment without them, and
// come back after it. So they are at most what the link carries to the host in the time
// before, and from it in the rest of both passes. Without a plan that time is known; a
// plan that costs c ms has at most c ms more. A plan that keeps on the device all that
// the other one moves needs as many bytes more, and recomputes no more. So the bound of
// plans without a link, for a step with as much more room at every moment, holds for all
// plans over the link that cost at most c.
//
// The room grows up to the moment at which the way back becomes the shorter one. From
// there on it counts as it is then. Storages that are there from the beginning of the step
// to moments before it take the place of the room that is not there yet.
struct RoomyStep {
  graph::Trace trace;  // with these storages
  int64_t room_bytes = 0;
};

// Returns the step with the room that plans have that cost at most `cost_ms`.
// `lost_bytes`: storages that may go to the host and never come back.
RoomyStep WithRoomOfLink(const graph::Trace& trace, const LinkLimits& link,
                         double cost_ms, int64_t lost_bytes);

// Returns the plan, which is for the families over the link, with the best bound that is
// found within a small share of the limits. It is optimal if it costs no more.
Plan WithOffloadBound(const Families& families, Plan plan,
                      const LinkLimits& link,
                      const solver::SearchLimits& limits);

}  // namespace acplan::problems
