#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/ask.h"
#include "problems/budget.h"
#include "problems/language/language.h"
#include "problems/language/language_search.h"
#include "problems/plan/plan.h"
#include "problems/trainers/trainer.h"

namespace acplan::problems {

// The best policy that a trainer's configuration can say, beside the best plan.
struct Emission {
  int64_t budget_bytes = 0;
  LanguageSolution solution = {};
  // The policy as a checked plan, and the text that says it, if there is a policy. The
  // plan's bound and status are those of the language: it is called optimal if the search
  // ended with a proof, though names that spare next to nothing (together 0.01% of a step)
  // are left out.
  Plan plan = {};
  std::string text = {};
  std::vector<std::string> units = {};  // names
  // If no policy fits, and for Budget::kMinimum, which is then the budget.
  std::optional<LanguageMinimum> least = {};
  // Choices of units that PyTorch refuses, and why.
  std::vector<std::string> notes = {};
  Plan free_plan = {};  // within the same budget
  // The smallest larger device for any policy that was tried, if none of them fits.
  std::optional<int64_t> least_device_bytes = {};

  // Returns whether there is a policy.
  bool HasPolicy() const { return !text.empty(); }
};

// A trainer's language on the trace of a question.
struct LanguageProblem {
  Families families = {};
  RestrictedTrace restriction = {};

  const PlanningProblem& problem() const { return families.front().problem; }
};

// Returns how many operators of each name run again.
std::map<std::string, int64_t> RerunsByName(const graph::Simulation& use,
                                            const graph::Trace& trace);

// Returns the question without skipped operators and without segments: no trainer's policy has
// them.
Question WithoutSkips(Question question);

// Throws InputError as Restrict.
LanguageProblem BuildLanguageProblem(const Question& question,
                                     const Language& language,
                                     const std::string& blocks);

// Fills in the plan, the units and the text of the policy that `emission.solution` has.
void DescribePolicy(const LanguageProblem& language, const Trainer& trainer,
                    Emission& emission);

// Answers for a trace. `blocks`: a pattern (BlocksLike), or "". The limits of the question
// hold for each of the searches. The text is read back before it is returned. Throws
// InputError as Ask and Restrict;
// std::logic_error if the plan fails its check, or the text says another policy.
Emission Emit(const Question& question, const Budget& budget,
              const Trainer& trainer, const std::string& blocks);

}  // namespace acplan::problems
