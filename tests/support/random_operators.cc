#include "tests/support/random_operators.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

namespace acplan::test_support {

using graph::OperatorPatterns;
using graph::SacStatistics;

namespace {

constexpr std::array kNames = {"mm",    "addmm", "add",     "mul",
                               "view",  "t",     "relu_",   "native_dropout",
                               "copy_", "gelu",  "_to_copy"};
constexpr std::array kPatterns = {"mm",     "*mm", "relu_", "?",    "add*",
                                  "[_gn]*", "*_",  "conv",  "m[mu]"};

}  // namespace

SacStatistics RandomOperators(std::mt19937& random,
                              const RandomOperatorsOptions& options) {
  const auto chance = [&](double probability) {
    return std::uniform_real_distribution<double>(0, 1)(random) < probability;
  };
  const auto below = [&](int64_t n) {
    return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
  };
  const bool is_arbitrary = chance(options.arbitrary_runtimes);
  const int n = 1 + static_cast<int>(below(options.most_ops));
  SacStatistics sac;
  for (int k = 0; k < n; ++k) {
    sac.func_names.emplace_back(kNames[below(std::ssize(kNames))]);
    if (k > 0 && chance(options.repeated)) {
      const int64_t other = below(k);
      sac.memory.push_back(sac.memory[other]);
      sac.runtimes.push_back(sac.runtimes[other]);
    } else {
      sac.memory.push_back(
          chance(options.no_memory) ? 0 : 1 + below(options.most_memory));
      const double ms =
          is_arbitrary ? std::pow(10.0, std::uniform_real_distribution<double>(
                                            -4, 2)(random))
                       : static_cast<double>(1 + below(16)) / 16;
      sac.runtimes.push_back(chance(options.no_runtime) ? 0 : ms);
    }
    if (chance(options.view_like)) sac.view_like_ops.push_back(k);
    if (chance(options.random)) sac.rand_ops.push_back(k);
    if (chance(0.2)) sac.saved_autograd_ops.push_back(k);
    if (chance(options.in_place)) {
      int64_t parent = k;
      if (!chance(options.in_place_on_itself)) {
        parent = chance(options.in_place_anywhere) ? below(n)
                 : k > 0                           ? below(k)
                                                   : k;
      }
      sac.inplace_ops.emplace_back(k, static_cast<int>(parent));
    }
  }
  std::ranges::shuffle(sac.rand_ops, random);
  sac.force_store_random = chance(options.force_store_random);
  return sac;
}

bool HasExactRuntimes(const SacStatistics& sac) {
  return std::ranges::all_of(sac.runtimes, [](double ms) {
    return 16 * ms == std::floor(16 * ms) && ms <= 1000;
  });
}

OperatorPatterns RandomPatterns(std::mt19937& random) {
  OperatorPatterns patterns;
  const auto any = [&] {
    return std::string(kPatterns[random() % kPatterns.size()]);
  };
  if (random() % 2 == 0) patterns.save.push_back(any());
  if (random() % 2 == 0) patterns.recompute.push_back(any());
  return patterns;
}

}  // namespace acplan::test_support
