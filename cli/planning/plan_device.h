#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/input/profile_input.h"
#include "cli/planning/allocator_flags.h"
#include "cli/terminal/terminal.h"
#include "problems/device_plans.h"
#include "problems/plan/device_run.h"
#include "problems/plan/plan.h"
#include "problems/plan_options.h"

namespace acplan::cli {

// Returns whether a question is about a device. Throws InputError unless exactly
// one of --budget and --device-memory is given, and for flags of the device with
// --budget.
bool IsForDevice(const std::string& budget, const AllocatorFlags& flags);

// Returns the device of --device-memory, and the settings that the flags leave
// open: native segments, expandable ones, and these with smaller pages; the optimizer's
// state in the first update or first. Throws InputError for bad flags, and
// where a run cannot be simulated: without a trace, on several ranks, or without
// states.
problems::DeviceChoice ParseDevice(const AllocatorFlags& flags,
                                   const ProfileInput& input,
                                   const problems::PlanOptions& options);

// Returns the line on what a GPU that was named offers; "" for a size.
std::string NamedDeviceText(const AllocatorFlags& flags);

// Returns the lines on what training must do for a plan to fit its device.
std::string SettingsText(const problems::PlanDevice& device);

// Returns the lines on how a run of the plan ends on its device; "" for plans
// for a budget.
std::string DeviceText(const problems::Plan& plan);

// Returns the lines on the least devices of a plan for a budget, with the settings
// that a program can choose. Returns "" where a run of it cannot be simulated, and
// after Ctrl-C, when nobody waits for it.
std::string LeastDevicesText(const graph::Trace* trace,
                             const problems::Plan& plan);

// Returns whether a run of the step can be simulated: of a trace, on one rank,
// with all states.
bool HasRun(const graph::Trace* trace, const problems::MemoryOptions& memory);

// Throws InputError, which names --device-memory, if it cannot.
void RequireRun(const ProfileInput& input,
                const problems::MemoryOptions& memory);

// Returns "state first, expandable segments", or the allocator as configured.
std::string SettingText(const problems::DeviceSetting& setting);

// Returns a table of what a run needs with each setting; "" without any.
std::string NeedsText(const std::vector<problems::DeviceNeed>& needs,
                      const Terminal& terminal);
nlohmann::ordered_json NeedsJson(
    const std::vector<problems::DeviceNeed>& needs);
nlohmann::ordered_json NeedJson(const problems::DeviceNeed& need);

// Returns the line for a device that no plan which was tried fits.
std::string NoFitText(const std::optional<int64_t>& least_device_bytes);

}  // namespace acplan::cli
