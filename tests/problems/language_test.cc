#include "problems/language/language.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/trace/link_time.h"
#include "graph/trace/trace.h"
#include "problems/check/policy_rules.h"
#include "problems/language/held_bytes.h"
#include "problems/language/language_search.h"
#include "problems/language/trainer_policy.h"
#include "problems/planner.h"
#include "problems/trainers/policy_changes.h"
#include "solver/infinity.h"
#include "tests/problems/language_step.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::CheckpointedModule;
using solver::SearchStatus;
using test_support::Repetitions;

constexpr int kSteps = Repetitions(25);
constexpr size_t kMostNames = 7;

struct NamedLanguage {
  std::string name;
  Language language;
};

Language WithHost(double bytes_per_second) {
  return {.may_have_no_unit = false,
          .takes_names = true,
          .may_offload = true,
          .link = LinkLimits{.rates = graph::BothWays(bytes_per_second)},
          .values = {{"first", {"leaf0:*"}}, {"second", {"leaf1:*"}}}};
}

std::vector<NamedLanguage> Languages() {
  return {{"whole", {}},
          {"names", {.takes_names = true}},
          {"parts", {.takes_names = true, .matches_parts = true}},
          {"products",
           {.takes_names = true, .product_period = 2, .stops_early = false}},
          {"layers",
           {.blocks = {BlockKind::kFirst, BlockKind::kEvery},
            .takes_names = true,
            .always_saved = {"aten.add.Tensor"}}},
          {"set", {.sets = {{"aten.*mm.default", "aten.gelu.default"}}}},
          {"without", {.takes_names = true, .never_saved = {"aten.mm.*"}}},
          {"classes", {.blocks = {BlockKind::kClasses}}},
          {"places",
           {.may_have_no_unit = false,
            .takes_names = true,
            .values = {{"first", {"leaf0:*"}},
                       {"products", {":aten.mm.default", "leaf1:*"}}}}},
          {"ranges",
           {.blocks = {BlockKind::kAll, BlockKind::kFirst, BlockKind::kRange},
            .takes_names = true}},
          // Links on which steps wait, and on which they do not.
          {"slow host", WithHost(1e7)},
          {"fast host", WithHost(1e9)}};
}

// The policies of a language, each once, by trying all names: the definition of a
// language in other words than language.cc.
class Enumeration {
 public:
  Enumeration(const RestrictedTrace& restricted, const Language& language)
      : restricted_(restricted),
        language_(language),
        trace_(*restricted.problem->trace) {}

  struct Entry {
    int64_t peak_bytes = 0;
    double ms = 0;
    TrainerPolicy policy = {};
  };

  // Returns nothing if there are too many.
  std::optional<std::vector<Entry>> Find() {
    if (language_.may_have_no_unit) Add({});
    const auto count = static_cast<int32_t>(restricted_.blocks.size());
    for (const BlockKind kind : language_.blocks) {
      if (kind == BlockKind::kClasses) {
        if (!AddSets({.kind = kind, .classes = {"Block"}})) return {};
        continue;
      }
      if (kind == BlockKind::kRange) {
        for (int32_t k = 0; k < count * count; ++k) {
          const BlockChoice range{
              .kind = kind, .begin = k / count, .end = k % count + 1};
          if (range.begin < 1 || range.begin >= range.end) continue;
          if (!AddSets(range)) return {};
        }
        continue;
      }
      const bool has_number = kind != BlockKind::kAll;
      for (int32_t n = 1; n <= (has_number ? count : 1); ++n) {
        const bool is_first = kind == BlockKind::kFirst;
        const bool is_period = kind == BlockKind::kEvery;
        if (!AddSets({.kind = kind,
                      .end = is_first ? n : 0,
                      .period = is_period ? n : 1})) {
          return {};
        }
      }
    }
    return entries_;
  }

  bool IsAlways(const std::string& name) const {
    return std::ranges::any_of(language_.always_saved,
                               [&](const std::string& pattern) {
                                 return graph::MatchesPattern(name, pattern);
                               });
  }

  std::set<std::string> NamesOf(const BlockChoice& blocks) const {
    std::set<std::string> names;
    for (const graph::ModuleId module :
         UnitModules(trace_, restricted_.blocks, blocks)) {
      const graph::CallId call = FirstCallWithGradients(trace_, module);
      for (const graph::OperatorId op : trace_.calls[call].Operators()) {
        names.insert(NameOf(trace_, module, op, language_.names()));
      }
    }
    return names;
  }

 private:
  bool IsSayable(const std::set<std::string>& saved,
                 const std::set<std::string>& names) const {
    const auto matches = [](const std::string& name,
                            const std::vector<std::string>& patterns) {
      return std::ranges::any_of(patterns, [&](const std::string& pattern) {
        return graph::MatchesPattern(name, pattern);
      });
    };
    if (saved.empty()) return true;
    if (!language_.values.empty()) {
      // Each value is saved as a whole, and nothing else is.
      const auto is_of_saved_value = [&](const std::string& name) {
        return std::ranges::any_of(language_.values, [&](const auto& value) {
          return matches(name, value.patterns) &&
                 std::ranges::all_of(names, [&](const std::string& other) {
                   return !matches(other, value.patterns) ||
                          saved.contains(other);
                 });
        });
      };
      return std::ranges::all_of(saved, is_of_saved_value);
    }
    if (!language_.takes_names) {
      return std::ranges::any_of(language_.sets, [&](const auto& set) {
        return std::ranges::all_of(names, [&](const std::string& name) {
          return saved.contains(name) == matches(name, set);
        });
      });
    }
    return std::ranges::all_of(names, [&](const std::string& name) {
      if (saved.contains(name)) return !matches(name, language_.never_saved);
      if (matches(name, language_.always_saved)) return false;
      return !language_.matches_parts ||
             std::ranges::none_of(saved, [&](const std::string& part) {
               return QualifiedName(name).find(QualifiedName(part)) !=
                      std::string::npos;
             });
    });
  }

  bool AddSets(const BlockChoice& blocks) {
    const std::vector<graph::ModuleId> modules =
        UnitModules(trace_, restricted_.blocks, blocks);
    const bool is_nested =
        blocks.kind == BlockKind::kClasses &&
        std::ranges::any_of(trace_.calls, [&](const graph::TraceCall& call) {
          return trace_.modules[call.module].class_name == "Block" &&
                 !call.no_grad &&
                 std::ranges::find(modules, call.module) == modules.end();
        });
    if (is_nested || modules.empty()) return true;
    const std::set<std::string> names = NamesOf(blocks);
    if (names.size() > kMostNames) return false;
    for (size_t set = 0; set < size_t{1} << names.size(); ++set) {
      std::set<std::string> saved;
      size_t k = 0;
      for (const std::string& name : names) {
        if ((set >> k++ & 1) != 0) saved.insert(name);
      }
      if (!IsSayable(saved, names)) continue;
      TrainerPolicy policy = language_.Saving(blocks);
      policy.saved.assign(saved.begin(), saved.end());
      Add(policy);
      if (language_.link) AddOffloaded(policy);
    }
    return true;
  }

  // Adds the policies that offload some of the values that a policy saves, and save the
  // others.
  void AddOffloaded(const TrainerPolicy& all_saved) {
    const size_t count = language_.values.size();
    std::set<std::vector<std::string>> known_sets = {{}};
    for (size_t set = 1; set < size_t{1} << count; ++set) {
      TrainerPolicy policy = all_saved;
      policy.saved.clear();
      for (const std::string& name : all_saved.saved) {
        bool is_offloaded = false;
        for (size_t v = 0; v < count; ++v) {
          for (const std::string& pattern : language_.values[v].patterns) {
            is_offloaded |=
                (set >> v & 1) != 0 && graph::MatchesPattern(name, pattern);
          }
        }
        (is_offloaded ? policy.offloaded : policy.saved).push_back(name);
      }
      if (known_sets.insert(policy.offloaded).second) Add(policy);
    }
  }

  // Returns whether an operator in place writes to a result that the policy saves.
  static bool OverwritesSaved(
      const graph::SacStatistics& sac,
      const std::vector<graph::OperatorDecision>& decisions) {
    return std::ranges::any_of(sac.inplace_ops, [&](const auto& pair) {
      return pair.first != pair.second && !decisions.empty() &&
             graph::Keeps(decisions[pair.second]);
    });
  }

  // Adds a policy that keeps the rules of plans and that PyTorch runs.
  void Add(const TrainerPolicy& policy) {
    const std::vector<CheckpointedModule> units =
        PlannedUnitsOf(restricted_, policy);
    size_t place = 0;
    for (const CheckpointedModule& unit : units) {
      const graph::SacStatistics* sac = nullptr;
      for (const graph::Module& module :
           restricted_.problem->profile->modules) {
        const bool is_it = module.fqn == trace_.modules[unit.module].fqn;
        if (is_it && module.sac) sac = &*module.sac;
      }
      if (sac == nullptr && !policy.saved.empty()) return;
      if (sac == nullptr) {
        ++place;
        continue;
      }
      const auto decision = [&](int k) { return unit.decisions[k]; };
      // Whole units draw the same numbers again, so none has to be saved.
      graph::SacStatistics rules = *sac;
      rules.force_store_random = false;
      if (BrokenOperatorRule(rules, {}, decision, false)) return;
      const auto saves = UnitsOf(trace_, restricted_.blocks, policy);
      if (OverwritesSaved(*sac, saves[place++].decisions)) return;
    }
    const std::optional<graph::Simulation> use =
        SimulatedUse(restricted_.TraceProblemOf(policy.blocks), units);
    if (!use) return;
    const double wait_ms =
        language_.link
            ? graph::TimeOnLink(trace_, *use, language_.link->rates).stall_ms
            : 0;
    entries_.push_back({use->peak_bytes, use->recompute_ms + wait_ms, policy});
  }

  const RestrictedTrace& restricted_;
  const Language& language_;
  const graph::Trace& trace_;
  std::vector<Entry> entries_;
};

std::string Mismatch(const std::vector<Enumeration::Entry>& entries,
                     int64_t budget, const LanguageSolution& solution) {
  double least = solver::kInfinity;
  TrainerPolicy best;
  for (const Enumeration::Entry& entry : entries) {
    if (entry.peak_bytes > budget || entry.ms >= least) continue;
    least = entry.ms;
    best = entry.policy;
  }
  if (least == solver::kInfinity) {
    return solution.status == SearchStatus::kInfeasible ? "" : "none fits";
  }
  if (solution.status != SearchStatus::kOptimal) return "not proven";
  const double ms = solution.CostMs();
  return std::abs(ms - least) <= 1e-9 * (1 + least) &&
                 solution.use.peak_bytes <= budget
             ? ""
             : fmt::format("{} ms saving {}, enumerated {} ms saving {}", ms,
                           fmt::join(solution.policy.saved, " "), least,
                           fmt::join(best.saved, " "));
}

class EveryPolicyOfALanguage : public ::testing::TestWithParam<TraceCaseKind> {
};
INSTANTIATE_TEST_SUITE_P(RandomSteps, EveryPolicyOfALanguage,
                         ::testing::ValuesIn([] {
                           std::vector<TraceCaseKind> kinds = TraceCaseKinds();
                           std::erase_if(kinds, [](const TraceCaseKind& kind) {
                             return kind.skips || kind.joins || kind.restricts;
                           });
                           return kinds;
                         }()),
                         [](const auto& test) { return test.param.name; });

TEST_P(EveryPolicyOfALanguage, IsNoBetterThanTheAnswer) {
  int answers = 0;
  int offloads = 0;
  int waits = 0;
  int unequal =
      0;  // answers that are neither no unit nor all of them, saving nothing
  for (unsigned seed = 0; seed < kSteps; ++seed) {
    const LanguageStep step(seed, GetParam().step);
    for (const auto& [name, language] : Languages()) {
      SCOPED_TRACE(fmt::format("seed {}, {}", seed, name));
      const RestrictedTrace restricted =
          Restrict(step.problem, language, BlocksOf(step.trace));
      const auto entries = Enumeration(restricted, language).Find();
      if (!entries || entries->empty()) continue;
      int64_t least = entries->front().peak_bytes;
      for (size_t k = 0; k < entries->size(); ++k) {
        least = std::min(least, (*entries)[k].peak_bytes);
        if (k % (1 + entries->size() / 6) != 0) continue;
        for (const int64_t budget :
             {(*entries)[k].peak_bytes, (*entries)[k].peak_bytes - 1}) {
          const LanguageSolution solution =
              SolveLanguage(restricted, budget, {});
          ASSERT_EQ(Mismatch(*entries, budget, solution), "")
              << "budget " << budget;
          ++answers;
          unequal += solution.policy.saved.empty() ? 0 : 1;
          offloads += solution.policy.offloaded.empty() ? 0 : 1;
          waits += solution.stall_ms > 0 ? 1 : 0;
        }
      }
      if (language.link) continue;
      const LanguageMinimum minimum = LeastOfLanguage(restricted, {});
      ASSERT_EQ(minimum.peak_bytes, least);
      ASSERT_TRUE(minimum.is_proven);
    }
  }
  EXPECT_GT(answers, 100);
  EXPECT_GT(unequal, 0);
  // A few steps alone may need nothing of the link.
  if (test_support::kEvery == 1) {
    EXPECT_GT(offloads, 0);
  }
  if (std::string(GetParam().name) == "repeated") {
    EXPECT_GT(waits, 0);
  }
}

// Returns whether `one` is in `other`.
bool IsIn(const std::vector<std::string>& one,
          const std::vector<std::string>& other) {
  return std::ranges::includes(other, one);
}

// Returns whether a policy is one change of names away from another one with the same
// units, in the words of sets: the least of all that have one name more, or the largest
// inside of it.
bool IsNameChange(const std::vector<Enumeration::Entry>& entries,
                  const TrainerPolicy& from, const TrainerPolicy& to) {
  const auto& [few, many] = from.saved.size() < to.saved.size()
                                ? std::tie(from.saved, to.saved)
                                : std::tie(to.saved, from.saved);
  if (from.blocks != to.blocks || few == many || !IsIn(few, many)) return false;
  const bool is_added = &few == &from.saved;
  const auto is_between = [&](const TrainerPolicy& other) {
    return other.blocks == from.blocks && IsIn(few, other.saved) &&
           IsIn(other.saved, many) && other.saved != few && other.saved != many;
  };
  if (!is_added) {
    return std::ranges::none_of(entries, is_between,
                                &Enumeration::Entry::policy);
  }
  return std::ranges::any_of(many, [&](const std::string& name) {
    return !std::ranges::binary_search(few, name) &&
           std::ranges::none_of(entries, [&](const auto& entry) {
             return is_between(entry.policy) &&
                    std::ranges::binary_search(entry.policy.saved, name);
           });
  });
}

// Returns whether a policy has other units and saves the same names, as far as the units
// have them.
bool IsBlockChange(const Enumeration& enumeration, const TrainerPolicy& from,
                   const TrainerPolicy& to) {
  if (from.blocks == to.blocks) return false;
  std::vector<std::string> saved;
  for (const std::string& name : enumeration.NamesOf(to.blocks)) {
    const bool is_saved = std::ranges::binary_search(from.saved, name) ||
                          (!from.saved.empty() && enumeration.IsAlways(name));
    if (is_saved) saved.push_back(name);
  }
  return to.saved == saved;
}

TEST_P(EveryPolicyOfALanguage, HasTheBestSingleChange) {
  int change_count = 0;
  int name_count = 0;
  for (unsigned seed = 0; seed < kSteps; ++seed) {
    const LanguageStep step(seed, GetParam().step);
    for (const auto& [name, language] : Languages()) {
      SCOPED_TRACE(fmt::format("seed {}, {}", seed, name));
      const RestrictedTrace restricted =
          Restrict(step.problem, language, BlocksOf(step.trace));
      // Changes of what is offloaded are compared in trainers_further_test.cc.
      if (language.link) continue;
      Enumeration enumeration(restricted, language);
      const auto entries = enumeration.Find();
      if (!entries || entries->empty()) continue;
      for (size_t k = 0; k < entries->size(); k += 1 + entries->size() / 5) {
        const Enumeration::Entry& from = (*entries)[k];
        for (const int64_t budget : {from.peak_bytes, from.peak_bytes - 1}) {
          const Enumeration::Entry* best = nullptr;
          for (const Enumeration::Entry& to : *entries) {
            const bool is_neighbour =
                IsBlockChange(enumeration, from.policy, to.policy) ||
                (language.sets.empty()
                     ? IsNameChange(*entries, from.policy, to.policy)
                     : from.policy.blocks == to.policy.blocks);
            if (!is_neighbour || to.peak_bytes > budget) continue;
            const auto is_less = [](const Enumeration::Entry& one,
                                    const Enumeration::Entry& other) {
              const double same_ms = 1e-9 * (1 + one.ms);
              if (std::abs(one.ms - other.ms) > same_ms) {
                return one.ms < other.ms;
              }
              return one.peak_bytes < other.peak_bytes;
            };
            const bool fits = from.peak_bytes <= budget;
            if (best != nullptr ? is_less(to, *best)
                                : !fits || is_less(to, from)) {
              best = &to;
            }
          }
          const BestChangeAnswer answer = FindBestChange(
              restricted, language, from.policy,
              {.peak_bytes = from.peak_bytes, .recompute_ms = from.ms},
              {.usable_bytes = budget});
          ASSERT_EQ(answer.best.has_value(), best != nullptr)
              << (best == nullptr
                      ? answer.best->change.words
                      : fmt::format("{}", fmt::join(best->policy.saved, " ")))
              << " from "
              << fmt::format("{}", fmt::join(from.policy.saved, " "));
          if (best == nullptr) continue;
          ASSERT_NEAR(answer.best->effect.recompute_ms, best->ms,
                      1e-9 * (1 + best->ms))
              << answer.best->change.words << " from "
              << fmt::format("{}", fmt::join(from.policy.saved, " "));
          ASSERT_EQ(answer.best->effect.peak_bytes, best->peak_bytes);
          ++change_count;
          name_count += answer.best->change.policy.saved != from.policy.saved;
        }
      }
    }
  }
  EXPECT_GT(change_count, 20);
  EXPECT_GT(name_count, 0);
}

// The bound of the search rests on this: bytes held grow with what is saved, and by less
// the more is saved already; the simulation has at least as much.
TEST_P(EveryPolicyOfALanguage, HoldsMoreTheMoreItSaves) {
  int compared = 0;
  for (unsigned seed = 0; seed < kSteps; ++seed) {
    const LanguageStep step(seed, GetParam().step);
    const RestrictedTrace restricted =
        Restrict(step.problem, {.takes_names = true}, BlocksOf(step.trace));
    const TraceProblem& problem = restricted.TraceProblemOf({});
    for (const UnitChoice& choice : restricted.choices) {
      const size_t count = choice.ties.size();
      std::vector<HeldBytes> holdings(size_t{1} << std::min(count, kMostNames));
      for (size_t set = 0; set < holdings.size(); ++set) {
        graph::IndexedVector<TieId, graph::Flag> saves(count, false);
        for (const TieId t : saves.ids()) {
          saves[t] = (set >> static_cast<size_t>(t) & 1) != 0;
        }
        const auto units = PlannedUnitsOf(restricted, PolicyOf(choice, saves));
        const auto use = SimulatedUse(problem, units);
        if (!use) continue;
        holdings[set] = HeldBytesOf(step.trace, problem.simulator, units);
        for (const graph::StepId k : use->steps.ids()) {
          if (use->steps[k].redone != graph::kNone) continue;
          ASSERT_LE(holdings[set][use->steps[k].op], use->live_bytes[k]);
        }
      }
      for (size_t set = 0; set < holdings.size(); ++set) {
        for (size_t one = 1; one < holdings.size(); one <<= 1) {
          for (size_t other = 1; other < holdings.size(); other <<= 1) {
            const bool is_new = (set & (one | other)) == 0 && one != other;
            if (!is_new || holdings[set].empty() ||
                holdings[set | one].empty() || holdings[set | other].empty() ||
                holdings[set | one | other].empty()) {
              continue;
            }
            for (const graph::OperatorId op : holdings[set].ids()) {
              ASSERT_LE(holdings[set][op], holdings[set | one][op]);
              ASSERT_LE(
                  holdings[set | one | other][op] - holdings[set | other][op],
                  holdings[set | one][op] - holdings[set][op]);
            }
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 20);
}

}  // namespace
}  // namespace acplan::problems
