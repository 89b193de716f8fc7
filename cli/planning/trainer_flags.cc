#include "cli/planning/trainer_flags.h"

#include <fmt/format.h>

#include <utility>

#include "graph/base/input_error.h"

namespace acplan::cli {

void TrainerFlags::AddTo(CLI::App& app, const std::string& of_device) {
  app.add_option("--blocks", blocks,
                 "shell pattern of the modules that the trainer checkpoints, "
                 "such as '*.layers.*' (default: the outermost modules with "
                 "numbers for names)")
      ->type_name("PATTERN");
  app.add_option("--reserve", planning.reserve,
                 "part of the budget to keep free")
      ->type_name("SIZE");
  app.add_option("--world-size", planning.memory.world_size,
                 "ranks that share parameters, gradients and optimizer state")
      ->type_name("N");
  app.add_option(
         "--time-limit", planning.time_limit,
         fmt::format("stop each search after S seconds (default {:g}); none: "
                     "no limit",
                     kSeconds))
      ->type_name("S");
  link.AddTo(app);
  allocator.AddTo(app, of_device);
  allocator.AddOptimizerStateTo(app, "the one that recomputes less");
  allocator.AddDdpTo(app);
}

problems::Trainer TrainerFlags::WithLink(problems::Trainer trainer,
                                         const problems::PlanOptions& options,
                                         std::string_view device) const {
  const auto limits = link.Parse(options, device);
  if (!limits) return trainer;
  if (!trainer.language.may_offload) {
    throw InputError(fmt::format(
        "--offload: expected a trainer whose configuration says what goes to "
        "the host, such as maxtext, found {}",
        trainer.name));
  }
  if (!allocator.FirstGiven().empty()) {
    throw InputError("--offload: needs --budget");
  }
  trainer.language.link = limits;
  return trainer;
}

}  // namespace acplan::cli
