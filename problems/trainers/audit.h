#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "problems/ask.h"
#include "problems/budget.h"
#include "problems/device_trials.h"
#include "problems/plan/plan.h"
#include "problems/trainers/config.h"
#include "problems/trainers/emit.h"
#include "problems/trainers/policy_changes.h"
#include "problems/trainers/trainer.h"

namespace acplan::problems {

// The policy of a trainer's configuration, judged on a trace.
struct Audit {
  ConfigReading reading = {};
  std::vector<PlannedModule> modules = {};  // the policy's units
  // The step that has them; null if that is the trace.
  std::shared_ptr<const ChangedStep> changed_step = {};
  PolicyEffect effect = {};
  std::map<std::string, int64_t> reruns = {};  // operators that run again
  int64_t baseline_bytes = 0;                  // the peak without a policy
  // The rule of plans that the policy breaks, if it breaks one: PyTorch then refuses the
  // policy, or gradients are wrong.
  std::optional<std::string> broken_rule = {};
  // The budget or device that was given, or else what the policy needs; reserve included.
  int64_t budget_bytes = 0;
  bool fits = true;
  // How the policy's run ends on the device, if one was given and it ends there.
  std::optional<PlanDevice> device = {};
  // The best policy of the trainer's language within the budget, and the best plan.
  Emission best = {};
  BestChangeAnswer change = {};  // within the budget
  // The configuration with that change: "" if the trainer has no words for it.
  std::string changed_text = {};
};

// The limit within which a configuration is compared: its own peak, a budget, or a device.
using AuditLimit = std::variant<std::monostate, Budget, DeviceChoice>;

// Reads a configuration and judges it. `blocks`: a pattern (BlocksLike), or "". Throws
// InputError as Emit and the reader, and for a policy that PyTorch refuses or that is not
// simulated.
Audit AuditConfig(const Question& question, const Trainer& trainer,
                  const Config& config, const std::string& blocks,
                  const AuditLimit& limit);

}  // namespace acplan::problems
