#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "problems/ask.h"
#include "problems/device_trials.h"
#include "problems/language/language.h"
#include "problems/trainers/emit.h"
#include "problems/trainers/trainer.h"

namespace acplan::problems {

// Policies of trainers for a device: what decides is whether a run of the policy's steps ends
// there (device_plans.h), and not its live bytes.

// Returns how a run of the policy ends on the device with the first of the settings with which
// it ends; nothing if it ends with none.
std::optional<PlanDevice> DeviceOfPolicy(const RestrictedTrace& restriction,
                                         const TrainerPolicy& policy,
                                         const DeviceChoice& choice,
                                         int64_t reserve_bytes);

// Searches for policies within smaller and smaller budgets of live bytes, and returns the one
// that recomputes least among those whose run ends. It is optimal if it recomputes as little
// as the best one within the whole device. The text names its own policy only; the settings
// are in Plan::device. Throws as Emit, and std::logic_error if the run fails its check.
Emission EmitForDevice(const Question& question, const DeviceChoice& choice,
                       const Trainer& trainer, const std::string& blocks);

}  // namespace acplan::problems
