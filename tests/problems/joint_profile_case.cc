#include "tests/problems/joint_profile_case.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "tests/support/synthetic_profile.h"

namespace acplan::problems {

using graph::Module;
using graph::Profile;

namespace {

std::vector<std::string> RandomModuleNames(const Profile& profile,
                                           std::mt19937& random,
                                           unsigned one_in) {
  std::vector<std::string> names;
  for (const Module& module : profile.modules) {
    if (random() % one_in == 0) names.push_back(module.fqn);
  }
  return names;
}

// Returns a pattern for the name of some operator.
graph::OperatorPatterns RandomPattern(const Profile& profile,
                                      std::mt19937& random) {
  std::vector<std::string> names;
  for (const Module& module : profile.modules) {
    if (module.is_leaf || module.calls == 0 || !module.sac) continue;
    names.insert(names.end(), module.sac->func_names.begin(),
                 module.sac->func_names.end());
  }
  graph::OperatorPatterns patterns;
  if (!names.empty()) {
    (random() % 2 == 0 ? patterns.save : patterns.recompute)
        .push_back(names[random() % names.size()]);
  }
  return patterns;
}

}  // namespace

JointProfileCase::JointProfileCase(unsigned seed)
    : profile(test_support::RandomProfile(
          seed, {.most_modules = 24, .most_operators = 8})) {
  std::mt19937 random(seed);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  if (!one_in(4)) options.memory.model = DefaultMemoryModel(profile);
  options.memory.world_size = int64_t{1} << random() % 4;
  options.memory.without_states = one_in(2);
  if (one_in(3)) options.max_units = 1 + static_cast<int>(random() % 3);
  if (one_in(6)) options.ac_units = RandomModuleNames(profile, random, 2);
  if (one_in(6)) options.fsdp_units = RandomModuleNames(profile, random, 8);
  if (one_in(4)) options.patterns = RandomPattern(profile, random);
  all = JointEnumerationOf(profile, options);
  least_budget = std::ceil(all.LeastBudget());
  const double share = std::uniform_real_distribution<double>(0, 1)(random);
  between = std::round(least_budget + share * (all.Peak({}) - least_budget));
}

std::vector<double> JointProfileCase::Budgets() const {
  std::vector<double> budgets;
  for (const double budget : {between, least_budget, least_budget - 1}) {
    if (budget >= 1) budgets.push_back(budget);
  }
  return budgets;
}

}  // namespace acplan::problems
