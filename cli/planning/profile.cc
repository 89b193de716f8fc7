#include "graph/profile/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/profile_input.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/message_text.h"
#include "graph/trace/trace.h"

namespace acplan::cli {

using graph::Profile;

namespace {

struct ProfileFlags {
  std::string trace;
  std::string output;
  bool json = false;
};

std::string ToText(const Profile& profile, const Terminal& terminal) {
  const int64_t with_operators = std::ranges::count_if(
      profile.modules,
      [](const graph::Module& module) { return module.sac.has_value(); });
  std::string text = fmt::format(
      "{}, {} modules, {} of them with operator statistics\n\n",
      terminal.Bold(graph::OneLine(profile.model.name)),
      FormatCount(std::ssize(profile.modules)), FormatCount(with_operators));
  using enum Table::Align;
  Table table({kLeft, kRight});
  const auto add = [&](const std::string& name,
                       const std::optional<int64_t>& bytes) {
    if (bytes) table.AddRow({name, graph::FormatBytes(*bytes)});
  };
  const graph::Measured& measured = profile.measured;
  add("peak", measured.peak_bytes);
  add("peak of the optimizer step", measured.opt_step_peak_bytes);
  add("parameters", measured.param_bytes);
  add("gradients", measured.grad_bytes);
  add("optimizer state", measured.optimizer_bytes);
  add("buffers", measured.buffer_bytes);
  add("inputs", measured.input_bytes);
  table.AddRow(
      {"forward", FormatMs(profile.modules.front().fw_runtime_per_module)});
  table.AddRow(
      {"backward", FormatMs(profile.modules.front().bw_runtime_per_module)});
  return text + table.ToString(terminal);
}

int RunProfile(const ProfileFlags& flags, const Terminal& terminal) {
  const Profile profile = ProfileOf(graph::ReadTrace(flags.trace), flags.trace);
  if (!flags.output.empty())
    graph::WriteFile(flags.output, graph::ProfileToJson(profile));
  terminal.Print(flags.json ? graph::ProfileToJson(profile)
                            : BrokenLines(ToText(profile, terminal), terminal));
  return kExitOk;
}

}  // namespace

Command AddProfileCommand(CLI::App& program) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* app = program.add_subcommand(
      "profile", "Derive the profile of a traced step, module by module");
  app->add_option("TRACE", flags->trace, "trace (.json or .json.gz)")
      ->required();
  app->add_flag("--json", flags->json, "print the profile and nothing else");
  AddOutput(*app, flags->output, "write the profile here (.json or .json.gz)");
  app->footer(
      "Example:\n  acplan profile example:traces/gpt2_tiny\n"
      "Exit status: 0 profiled, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunProfile(*flags, terminal);
          }};
}

}  // namespace acplan::cli
