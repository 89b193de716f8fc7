#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/input/planning_flags.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/link_flags.h"
#include "problems/trainers/trainer.h"

namespace acplan::cli {

// The flags of commands that search for policies of a trainer.
struct TrainerFlags {
  static constexpr double kSeconds = 5;  // --time-limit, of each search

  std::string blocks;
  PlanningFlags planning;
  AllocatorFlags allocator;
  LinkFlags link;

  // Adds --blocks, --reserve, --world-size, --time-limit, --offload, --device-memory and the flags of a
  // run on a device; `of_device` describes --device-memory.
  void AddTo(CLI::App& app, const std::string& of_device);

  // Returns the trainer, whose language has the link of --offload on a trace of this
  // device. Throws InputError if its
  // configuration cannot say what goes to the host.
  problems::Trainer WithLink(problems::Trainer trainer,
                             const problems::PlanOptions& options,
                             std::string_view device) const;
};

}  // namespace acplan::cli
