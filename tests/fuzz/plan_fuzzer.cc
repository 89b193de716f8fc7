// Requires that every input either is refused with an InputError of one line, or
// is a plan that is the same after it is written and read again, and whose check,
// for a step and for a profile, names a rule that it breaks or none. Built with
// -fsanitize=fuzzer, or with replay_main.cc.

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "graph/base/input_error.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/trace.h"
#include "problems/check/plan_effect.h"
#include "problems/check/plan_rules.h"
#include "problems/plan/plan.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/planner.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"
#include "tests/support/random_step.h"
#include "tests/support/synthetic_profile.h"

namespace {

using namespace acplan::graph;
using namespace acplan::problems;
namespace test_support = acplan::test_support;

const Trace& Step() {
  static const Trace step = [] {
    std::mt19937 random(11);
    return test_support::RandomStep(
        random,
        {.nests = true, .skips = true, .shares_modules = true, .writes = true});
  }();
  return step;
}

const Profile& StepProfile() {
  static const Profile profile = Aggregate(Step());
  return profile;
}

const Profile& Gpt() {
  static const Profile profile = test_support::SyntheticGpt(2);
  return profile;
}

template <typename Check>
void Try(std::string_view start, Check check) {
  try {
    check();
  } catch (const acplan::InputError& error) {
    CheckMessage(error, start);
  }
}

void CheckOn(const Plan& plan, const Profile& profile, const Trace* trace) {
  std::optional<std::string> broken;
  Try("", [&] { broken = FirstBrokenRule(profile, plan, {}, trace); });
  if (broken) Require(!broken->empty(), "a rule");
  Try("", [&] {
    const PlanEffect effect =
        ComputeEffect(profile, plan.modules, plan.memory, plan.tradeoff, trace);
    Require(effect.peak_bytes >= 0, "a peak");
    Require(effect.recompute_ms >= 0, "no time is won");
  });
}

void CheckOnStep(const Plan& plan) {
  Try("", [&] {
    const std::optional<Trace> segments = WithSegmentsOf(Step(), plan.modules);
    if (!segments) return CheckOn(plan, StepProfile(), &Step());
    CheckOn(plan, Aggregate(*segments), &*segments);
  });
}

}  // namespace

std::string ValidInput(unsigned seed) {
  std::mt19937 random(seed);
  PlanOptions options;
  const bool is_of_step = random() % 2 == 0;
  const Profile& profile = is_of_step ? StepProfile() : Gpt();
  const Trace* trace = is_of_step ? &Step() : nullptr;
  if (is_of_step) {
    options.memory.model = MemoryModel::kTrace;
    options.may_skip = random() % 4 != 0;
  } else if (random() % 2 == 0) {
    options.granularity = Granularity::kModule;
  }
  const ModuleTree tree(profile);
  const PlanningProblem problem =
      BuildPlanningProblem(profile, tree, options, trace);
  acplan::solver::SearchLimits limits;
  limits.node_limit = 200;
  const double share = std::uniform_real_distribution(0., 1.)(random);
  const int64_t least = LeastPlan(problem, limits).budget.bytes;
  const auto room = static_cast<double>(problem.unplanned_peak_bytes - least);
  const int64_t budget = least + static_cast<int64_t>(share * room);
  return PlanToJson(PlanFor(problem, budget, limits).plan);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Plan plan;
  try {
    plan = ParsePlan(text, "fuzz.json");
    const std::string plan_text = PlanToJson(plan);
    Require(PlanToJson(ParsePlan(plan_text, "fuzz.json")) == plan_text,
            "the same plan after writing and reading");
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
    return 0;
  }
  CheckOnStep(plan);
  CheckOn(plan, Gpt(), nullptr);
  return 0;
}
