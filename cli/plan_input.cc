#include "cli/plan_input.h"

#include <fmt/format.h>

#include "graph/message_text.h"

namespace acplan::cli {

problems::Plan ReadAnswer(const std::filesystem::path& path,
                          const graph::Profile& profile) {
  problems::Plan plan = problems::ReadPlan(path);
  if (!plan.HasPlan()) {
    throw InputError(fmt::format(
        "{}: status: expected a plan (optimal or feasible), found \"{}\"",
        graph::OneLine(path.string()), ToString(plan.status)));
  }
  if (plan.model != profile.model.name) {
    throw InputError(fmt::format(
        "{}: model: expected {} (the profile's), found {}: a plan for another "
        "model",
        graph::OneLine(path.string()), graph::Quoted(profile.model.name),
        graph::Quoted(plan.model)));
  }
  return plan;
}

InputError NamingFile(const InputError& error,
                      const std::filesystem::path& path) {
  constexpr std::string_view kPlan = "plan: ";
  const std::string_view message = error.what();
  if (!message.starts_with(kPlan)) return error;
  return InputError(fmt::format("{}: {}", graph::OneLine(path.string()),
                                message.substr(kPlan.size())));
}

}  // namespace acplan::cli
