#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "cli/input/profile_input.h"
#include "cli/planning/link_flags.h"
#include "graph/trace/link_time.h"
#include "problems/offload/input_moves.h"
#include "problems/planner.h"

namespace acplan::cli {

// The gain of moving the inputs of blocks to the host's memory over a link.
struct MovesExplanation {
  graph::LinkRates rates;
  problems::InputMoves moves;
};

// Returns it for the link of the flags, or without them of the trace's device; nothing if
// its link is not known, or nothing can move.
std::optional<MovesExplanation> ExplainMoves(
    const LinkFlags& flags, const ProfileInput& input,
    const problems::PlanningProblem& problem);

std::string ToText(const MovesExplanation& explanation);
nlohmann::ordered_json ToJson(const MovesExplanation& explanation);

}  // namespace acplan::cli
