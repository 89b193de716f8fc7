#include "cli/planning/plan_verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "cli/input/planning_flags.h"
#include "cli/planning/step_times.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"

namespace acplan::cli {

using problems::Plan;
using problems::PlanStatus;

namespace {

std::string LeastText(const Plan& plan) {
  std::string text = fmt::format(": no plan fits in {}\n",
                                 FormatBytesExactly(plan.budget_bytes));
  if (plan.minimum_budget_bytes) {
    text += fmt::format("the smallest feasible budget: {}\n",
                        FormatBytesExactly(*plan.minimum_budget_bytes));
  } else if (plan.fitting_budget_bytes) {
    text += fmt::format(
        "a plan fits in {}; the smallest feasible budget is not proven\n",
        FormatBytesExactly(*plan.fitting_budget_bytes));
  }
  return text;
}

// Returns the verdict on a plan whose step runs on streams. `effort`: that of the search.
PlanVerdict VerdictOnStreams(const Plan& plan, const std::string& effort) {
  const double step_ms = StepTimesOf(plan).after_ms;
  if (plan.status == PlanStatus::kOptimal) {
    return {"optimal",
            fmt::format(": no plan within the budget has a shorter step than "
                        "{} ({})\n",
                        FormatMs(step_ms), effort)};
  }
  const double least_ms =
      std::max(plan.streams->least_step_ms.value_or(0),
               plan.host ? plan.host->least_step_ms.value_or(0) : 0);
  return {"feasible",
          fmt::format(": the step takes {}, and with no plan within the budget "
                      "less than {} ({})\n",
                      FormatMs(step_ms), FormatMs(least_ms), effort)};
}

}  // namespace

PlanVerdict VerdictOn(const Plan& plan) {
  const std::string effort = fmt::format(
      "{:.3f} s, {} {}", plan.solver.seconds, FormatCount(plan.solver.nodes),
      plan.solver.name == "cbc" ? "nodes of CBC" : "labels");
  if (plan.streams && plan.HasPlan() && !plan.device && !plan.offload) {
    return VerdictOnStreams(plan, effort);
  }
  switch (plan.status) {
    case PlanStatus::kOptimal:
      return {"optimal",
              fmt::format(": no plan within the {} {} less (gap 0, {})\n",
                          plan.device ? "device" : "budget",
                          plan.offload ? "recomputes and waits" : "recomputes",
                          effort)};
    case PlanStatus::kFeasible:
      if (plan.device) {
        return {"feasible",
                fmt::format(": no plan whose live bytes fit the device "
                            "recomputes less than {} (gap {}, {})\n",
                            FormatMs(plan.bound_ms), FormatPercentUp(plan.gap),
                            effort)};
      }
      if (plan.WaitsForHost()) {
        return {"feasible",
                ": the best plan known for a step that waits for "
                "the host (" +
                    effort + ")\n"};
      }
      if (plan.offload) {
        return {"feasible",
                fmt::format(": no plan over this link recomputes and waits "
                            "less than {} (gap {}, {})\n",
                            FormatMs(plan.bound_ms), FormatPercentUp(plan.gap),
                            effort)};
      }
      return {
          "feasible",
          fmt::format(", {}: no plan recomputes less than {} (gap {}, {})\n",
                      LimitText(plan.limit), FormatMs(plan.bound_ms),
                      FormatPercentUp(plan.gap), effort)};
    case PlanStatus::kInfeasible:
      return {"infeasible", LeastText(plan)};
    case PlanStatus::kNoPlan:
      break;
  }
  if (!plan.limit) {
    return {"no plan",
            fmt::format(": no plan with offload was found, and no plan "
                        "without it fits ({})\n",
                        effort)};
  }
  if (*plan.limit == "unproven") {
    return {"no plan",
            fmt::format(": the search ended without one, and without a proof "
                        "that there is none ({})\n",
                        effort)};
  }
  return {"no plan", fmt::format(": {} before a plan was found ({})\n",
                                 LimitText(plan.limit), effort)};
}

}  // namespace acplan::cli
