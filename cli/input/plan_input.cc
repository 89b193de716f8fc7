#include "cli/input/plan_input.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/trace/aggregate.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/plan_table.h"

namespace acplan::cli {

problems::Plan ReadAnswer(const std::filesystem::path& path,
                          const graph::Profile& profile) {
  return ReadAnswer(path, profile.model.name);
}

problems::Plan ReadAnswer(const std::filesystem::path& path,
                          std::string_view model) {
  const std::string text = graph::ReadJsonText(path);
  RefuseTable(text, path, "a plan");
  problems::Plan plan = problems::ParsePlan(text, path.string());
  RequireAnswer(plan, path);
  RequireModel(plan, model, path);
  return plan;
}

void RefuseTable(std::string_view text, const std::filesystem::path& path,
                 std::string_view expected) {
  if (!problems::IsPlanTable(text)) return;
  throw InputError(
      fmt::format("{}: expected {}, found a table of plans: use acplan lengths "
                  "check, simulate, explain or report",
                  graph::OneLine(path.string()), expected));
}

void RequireAnswer(const problems::Plan& plan,
                   const std::filesystem::path& path) {
  if (plan.HasPlan()) return;
  throw InputError(fmt::format(
      "{}: status: expected a plan (optimal or feasible), found \"{}\"",
      graph::OneLine(path.string()), ToString(plan.status)));
}

void RequireModel(const problems::Plan& plan, std::string_view model,
                  const std::filesystem::path& path) {
  if (plan.model == model) return;
  throw InputError(
      fmt::format("{}: model: expected {} (the model of the profile), found "
                  "{}: a plan for another model",
                  graph::OneLine(path.string()), graph::Quoted(model),
                  graph::Quoted(plan.model)));
}

void RequireTrace(const problems::MemoryOptions& memory,
                  const ProfileInput& input,
                  const std::filesystem::path& path) {
  if (memory.model != problems::MemoryModel::kTrace || input.trace) return;
  throw InputError(
      fmt::format("{}: memory_model: expected snapshot or torch for a profile, "
                  "found trace; give the trace in place of the profile, or "
                  "--memory-model snapshot",
                  graph::OneLine(path.string())));
}

ProfileInput WithSegmentsOf(ProfileInput input, const problems::Plan& plan,
                            const std::filesystem::path& path) {
  if (!input.trace) return input;
  try {
    if (auto trace = problems::WithSegmentsOf(*input.trace, plan.modules)) {
      input.profile = graph::Aggregate(*trace);
      input.trace = std::move(trace);
    }
    return input;
  } catch (const InputError& error) {
    throw NamingFile(error, path);
  }
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
