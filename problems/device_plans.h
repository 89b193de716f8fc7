#pragma once

#include <cstdint>
#include <optional>

#include "problems/ask.h"
#include "problems/device_trials.h"

namespace acplan::problems {

// The best plan that a search for a device found.
struct DeviceAnswer {
  Answer answer;
  // The smallest larger device for any plan that was tried, if none of them fits.
  std::optional<int64_t> least_device_bytes = {};
};

// Returns a plan on a trace of which a run (graph/run) ends on the device with one of
// the settings, with the least recomputation that the search finds. Its
// budget is the device's memory; Plan::device says how the run ends.
//
// Live bytes are at most what the device has. So the bound of the plan for that
// budget is a bound for all plans that fit the device, and a plan is optimal if it
// reaches it. If no plan fits by its live bytes, the answer says so as Ask does. If
// plans do and no run of those tried ends, the answer has no plan: that is no
// proof that there is none.
//
// Requires a question on a trace for one rank, with all states. Throws
// InputError as Ask, and std::logic_error if the run fails its check
// (check/device_rules.h): a defect of acplan.
DeviceAnswer AskForDevice(const Question& question, const DeviceChoice& choice);

}  // namespace acplan::problems
