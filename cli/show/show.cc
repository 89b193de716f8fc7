#include <memory>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/profile_input.h"
#include "cli/show/views.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

namespace {

// Throws InputError for flags that do not go together.
void CheckFlags(const ShowFlags& flags) {
  if (flags.modules && !flags.plans.empty()) {
    throw InputError("--modules: cannot be combined with plans");
  }
  if (!flags.modules && !flags.depth.empty()) {
    throw InputError("--depth: needs --modules");
  }
  if (!flags.modules && flags.all) {
    throw InputError("--all: needs --modules");
  }
}

int RunShow(const ShowFlags& flags, const Terminal& terminal) {
  CheckFlags(flags);
  const ProfileInput input = ReadProfileOrTrace(flags.profile);
  if (flags.modules) {
    ShowModules(flags, input, terminal);
  } else if (flags.plans.empty()) {
    ShowBaseline(flags, input, terminal);
  } else {
    ShowPlans(flags, input, terminal);
  }
  return kExitOk;
}

}  // namespace

Command AddShowCommand(CLI::App& program) {
  auto flags = std::make_shared<ShowFlags>();
  CLI::App* app = program.add_subcommand(
      "show", "Show peak memory and run-time of a model and its plans");
  app->add_option("PROFILE", flags->profile,
                  "profile or trace (.json or .json.gz)")
      ->required();
  app->add_option("PLAN", flags->plans,
                  "plan files to compare with the step without a plan");
  app->add_flag("--modules", flags->modules,
                "print the module tree with its statistics");
  app->add_option("--depth", flags->depth,
                  "with --modules: fold modules deeper than N")
      ->type_name("N");
  app->add_flag("--all", flags->all,
                "with --modules: list identical blocks one by one");
  flags->memory.AddTo(*app);
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  app->footer(
      "All plans are shown under one memory model and world size: the given "
      "ones, otherwise those of the first plan.\nExamples:\n  acplan show "
      "example:profiles/llama8b\n  acplan show "
      "example:profiles/llama8b --modules --depth 3\n  acplan show "
      "example:profiles/gpt2_small 12GiB.json 10GiB.json");
  return {app, [flags](const Terminal& terminal) {
            return RunShow(*flags, terminal);
          }};
}

}  // namespace acplan::cli
