#include "problems/trainers/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "graph/base/input_error.h"
#include "problems/language/language.h"
#include "problems/offload_plans.h"

namespace acplan::problems {

using solver::SearchStatus;

namespace {

// The share of a step that a policy with fewer names may recompute in addition.
constexpr double kSimplerShare = 1e-4;

// Returns the plan of a solution, checked.
Plan CheckedPlan(const PlanningProblem& problem, int64_t budget_bytes,
                 const std::optional<LinkLimits>& link,
                 const LanguageSolution& solution) {
  Plan plan = PlanWithoutAnswer(problem, budget_bytes, solution.stopped_by);
  if (link) plan.offload = OffloadOver(*link);
  plan = PlanOfUnits(problem, std::move(plan), solution.units);
  plan.bound_ms = std::min(solution.bound_ms, plan.CostMs());
  plan.gap =
      plan.CostMs() > 0 ? (plan.CostMs() - plan.bound_ms) / plan.CostMs() : 0;
  plan.status = solution.status == SearchStatus::kOptimal
                    ? PlanStatus::kOptimal
                    : PlanStatus::kFeasible;
  plan.limit = LimitName(solution.stopped_by);
  return plan;
}

std::string CheckedText(const Trainer& trainer, const TrainerPolicy& policy,
                        const ConfigNames& names) {
  std::string text = trainer.write(policy, names);
  const Config config(text, std::string(trainer.name), trainer.format);
  if (trainer.read(config, names).policy != policy) {
    throw std::logic_error(
        fmt::format("{}: the text says another policy", trainer.name));
  }
  return text;
}

}  // namespace

std::map<std::string, int64_t> RerunsByName(const graph::Simulation& use,
                                            const graph::Trace& trace) {
  std::map<std::string, int64_t> reruns;
  for (const graph::Simulation::Step& step : use.steps) {
    if (step.redone == graph::kNone) continue;
    ++reruns[trace.operator_names[trace.operators[step.op].name]];
  }
  return reruns;
}

Question WithoutSkips(Question question) {
  question.options.may_skip = false;
  question.segments = {};
  question.times_off.reset();
  return question;
}

LanguageProblem BuildLanguageProblem(const Question& question,
                                     const Language& language,
                                     const std::string& blocks) {
  LanguageProblem language_problem{.families =
                                       BuildFamilies(WithoutSkips(question))};
  language_problem.restriction = Restrict(language_problem.problem(), language,
                                          BlocksLike(*question.trace, blocks));
  // Without units there is always a policy, if the language can say that.
  if (language_problem.restriction.choices.empty()) {
    throw InputError(fmt::format(
        "expected blocks that the trainer can checkpoint, found none: {}",
        language_problem.restriction.notes.empty()
            ? "no block is called with gradients"
            : language_problem.restriction.notes.front()));
  }
  return language_problem;
}

void DescribePolicy(const LanguageProblem& language, const Trainer& trainer,
                    Emission& emission) {
  const RestrictedTrace& restriction = language.restriction;
  const TrainerPolicy& policy = emission.solution.policy;
  emission.plan =
      CheckedPlan(restriction.ProblemOf(policy.blocks), emission.budget_bytes,
                  restriction.link, emission.solution);
  emission.units = UnitNames(restriction, policy.blocks);
  emission.text =
      CheckedText(trainer, policy,
                  ConfigNamesOf(*language.problem().trace, restriction.blocks));
}

Emission Emit(const Question& question, const Budget& budget,
              const Trainer& trainer, const std::string& blocks) {
  const LanguageProblem language =
      BuildLanguageProblem(question, trainer.language, blocks);
  const PlanningProblem& problem = language.problem();
  const RestrictedTrace& restricted = language.restriction;
  const int64_t reserve_bytes = question.options.reserve_bytes;
  Emission emission{.notes = restricted.notes};
  if (budget.kind == Budget::Kind::kMinimum) {
    if (restricted.link) {
      throw InputError("--offload: expected a budget other than min");
    }
    emission.least = LeastOfLanguage(restricted, question.options.limits);
    emission.budget_bytes = emission.least->peak_bytes + reserve_bytes;
  } else {
    emission.budget_bytes = budget.Bytes(problem.unplanned_peak_bytes);
  }
  const int64_t usable_bytes = emission.budget_bytes - reserve_bytes;
  emission.solution =
      SolveLanguage(restricted, usable_bytes, question.options.limits);
  if (emission.solution.HasPolicy()) {
    const double most_ms = emission.solution.use.recompute_ms +
                           kSimplerShare * problem.baseline.runtime_ms;
    emission.solution = Simplified(restricted, usable_bytes, most_ms,
                                   std::move(emission.solution));
    DescribePolicy(language, trainer, emission);
  } else if (!emission.least) {
    emission.least = LeastOfLanguage(restricted, question.options.limits);
    if (restricted.link) emission.least->is_proven = false;
  }
  emission.free_plan =
      Ask(question, {.bytes = emission.budget_bytes}, trainer.language.link)
          .plan;
  return emission;
}

}  // namespace acplan::problems
