#include "graph/profile/sac_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/operator_rules.h"
#include "tests/support/random_operators.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::GlobMatches;
using test_support::KeepsRules;
using test_support::RandomOperators;
using test_support::RandomPatterns;
using test_support::Repetitions;

SacStatistics WithMemory(std::vector<int64_t> memory) {
  SacStatistics sac;
  sac.memory = std::move(memory);
  sac.runtimes.assign(sac.memory.size(), 1.0);
  sac.func_names.assign(sac.memory.size(), "op");
  return sac;
}

TEST(ForcedSavedBytes, IsZeroWithoutConstraints) {
  EXPECT_EQ(ForcedSavedBytes(SacStatistics()), 0);
  EXPECT_EQ(ForcedSavedBytes(WithMemory({1, 2, 4})), 0);
}

TEST(ForcedSavedBytes, TakesOperatorsInPlaceOnThemselves) {
  SacStatistics sac = WithMemory({1, 2, 4});
  sac.inplace_ops = {{1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 2);
}

TEST(ForcedSavedBytes, FollowsInPlacePairsFromAForcedOperator) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.inplace_ops = {{3, 2}, {2, 1}, {1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 14);
}

TEST(ForcedSavedBytes, LeavesPairsThatAreNotForced) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.inplace_ops = {{1, 0}};
  EXPECT_EQ(ForcedSavedBytes(sac), 0);
}

TEST(ForcedSavedBytes, TakesRandomOperatorsWhenTheyMustBeStored) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.rand_ops = {1, 3};
  EXPECT_EQ(ForcedSavedBytes(sac), 0);
  sac.force_store_random = true;
  EXPECT_EQ(ForcedSavedBytes(sac), 10);
  sac.inplace_ops = {{2, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 14);
}

TEST(ForcedSavedBytes, TiesRandomOperatorsToEachOther) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.rand_ops = {1, 3};
  sac.inplace_ops = {{1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 10);
}

TEST(ForcedSavedBytes, NeverCountsNorFollowsViewLikeOperators) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.view_like_ops = {1};
  sac.inplace_ops = {{0, 0}, {1, 0}, {2, 1}, {1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 1);
  sac.rand_ops = {1, 3};
  sac.force_store_random = true;
  EXPECT_EQ(ForcedSavedBytes(sac), 9);
}

// The example of PyTorch's greedy order: every policy stores only copy_.
TEST(ForcedSavedBytes, OnPyTorchsEightOperators) {
  SacStatistics sac = WithMemory({0, 100, 100, 120, 0, 100, 0, 0});
  sac.view_like_ops = {6};
  sac.rand_ops = {4};
  sac.inplace_ops = {{0, 0}, {7, 5}};
  EXPECT_EQ(ForcedSavedBytes(sac), 0);
  sac.memory[0] = 64;
  EXPECT_EQ(ForcedSavedBytes(sac), 64);
}

// Returns the least memory that a policy can save, by trying all.
int64_t LeastSaved(const SacStatistics& sac) {
  const int n = static_cast<int>(sac.memory.size());
  auto is_in = [](const std::vector<int>& set, int op) {
    return std::ranges::find(set, op) != set.end();
  };
  int64_t least = INT64_MAX;
  for (int policy = 0; policy < 1 << n; ++policy) {
    auto saves = [&](int op) { return (policy >> op & 1) != 0; };
    bool legal = true;
    int64_t bytes = 0;
    for (int op = 0; op < n; ++op) {
      const bool is_view = is_in(sac.view_like_ops, op);
      legal = legal && !(is_view && saves(op));
      if (is_view || !is_in(sac.rand_ops, op)) continue;
      legal = legal && !(sac.force_store_random && !saves(op));
      for (int other : sac.rand_ops)
        if (!is_in(sac.view_like_ops, other))
          legal = legal && saves(op) == saves(other);
    }
    for (auto [op, parent] : sac.inplace_ops) {
      if (is_in(sac.view_like_ops, op) || is_in(sac.view_like_ops, parent))
        continue;
      legal = legal && (op == parent ? saves(op) : saves(op) == saves(parent));
    }
    for (int op = 0; op < n; ++op)
      if (saves(op)) bytes += sac.memory[op];
    if (legal) least = std::min(least, bytes);
  }
  return least;
}

TEST(ForcedSavedBytes, IsTheLeastThatAnyPolicySaves) {
  std::mt19937 random(3);
  for (int round = 0; round < Repetitions(500); ++round) {
    const int n = 1 + static_cast<int>(random() % 8);
    std::vector<int64_t> memory;
    for (int i = 0; i < n; ++i) memory.push_back(1 << i);
    SacStatistics sac = WithMemory(memory);
    for (int i = 0; i < n; ++i) {
      if (random() % 5 == 0) sac.view_like_ops.push_back(i);
      if (random() % 4 == 0) sac.rand_ops.push_back(i);
      if (random() % 3 == 0)
        sac.inplace_ops.emplace_back(i, static_cast<int>(random() % (i + 1)));
    }
    sac.force_store_random = random() % 2 == 0;
    EXPECT_EQ(ForcedSavedBytes(sac), LeastSaved(sac)) << "round " << round;
  }
}

struct PatternCase {
  std::string name, pattern;
  bool matches;
};

class Patterns : public ::testing::TestWithParam<PatternCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, Patterns,
    ::testing::Values(
        PatternCase{"mm", "mm", true}, PatternCase{"addmm", "mm", false},
        PatternCase{"mm_out", "mm", false}, PatternCase{"MM", "mm", false},
        PatternCase{"addmm", "*mm", true}, PatternCase{"mm", "*mm", true},
        PatternCase{"addmm", "a*m", true}, PatternCase{"addmm", "a*d", false},
        PatternCase{"", "*", true}, PatternCase{"", "", true},
        PatternCase{"mm", "", false}, PatternCase{"mm", "***", true},
        PatternCase{"_flash_attention_forward", "_flash_attention*", true},
        PatternCase{"my_flash_attention", "_flash_attention*", false},
        PatternCase{"bmm", "?mm", true}, PatternCase{"mm", "?mm", false},
        PatternCase{"addmm", "?mm", false}, PatternCase{"a?b", "a?b", true},
        PatternCase{"bmm", "[abc]mm", true},
        PatternCase{"dmm", "[abc]mm", false},
        PatternCase{"bmm", "[a-c]mm", true},
        PatternCase{"dmm", "[!a-c]mm", true},
        PatternCase{"bmm", "[!a-c]mm", false},
        PatternCase{"relu_", "*[_]", true}, PatternCase{"aten/mm", "*mm", true},
        PatternCase{".mm", "*mm", true}, PatternCase{".mm", "?mm", true},
        PatternCase{"a*b", "a\\*b", false}, PatternCase{"a\\b", "a\\b", true},
        PatternCase{"a\\xb", "a\\*b", true}));

TEST_P(Patterns, MatchWholeNames) {
  EXPECT_EQ(MatchesPattern(GetParam().name, GetParam().pattern),
            GetParam().matches)
      << GetParam().name << " " << GetParam().pattern;
}

SacStatistics FewOperators(std::mt19937& random) {
  return RandomOperators(random, {.most_ops = 9, .most_memory = 50});
}

// Returns random patterns half of the time, else none.
OperatorPatterns SomePatterns(std::mt19937& random) {
  return random() % 2 == 0 ? OperatorPatterns() : RandomPatterns(random);
}

// Returns which operators in-place pairs and random operators tie, as a
// closure.
std::vector<std::vector<char>> TiesOf(const SacStatistics& sac) {
  const size_t n = sac.memory.size();
  std::vector<std::vector<char>> tied(n, std::vector<char>(n, 0));
  for (size_t k = 0; k < n; ++k) tied[k][k] = 1;
  for (const auto& [op, parent] : sac.inplace_ops) {
    tied[op][parent] = tied[parent][op] = 1;
  }
  for (const int a : sac.rand_ops) {
    for (const int b : sac.rand_ops) tied[a][b] = 1;
  }
  for (size_t via = 0; via < n; ++via) {
    for (size_t a = 0; a < n; ++a) {
      for (size_t b = 0; b < n; ++b)
        if (tied[a][via] && tied[via][b]) tied[a][b] = 1;
    }
  }
  return tied;
}

// Calls `use` with every policy, legal or not.
template <typename Use>
void ForEachPolicy(size_t n, const Use& use) {
  std::vector<char> save(n);
  for (size_t policy = 0; policy < size_t{1} << n; ++policy) {
    for (size_t k = 0; k < n; ++k) save[k] = policy >> k & 1;
    use(save);
  }
}

bool HasLegalPolicy(const SacStatistics& sac,
                    const OperatorPatterns& patterns) {
  bool has_policy = false;
  ForEachPolicy(sac.memory.size(), [&](const std::vector<char>& save) {
    has_policy = has_policy || KeepsRules(sac, patterns, save);
  });
  return has_policy;
}

bool KeepsGroups(const OperatorGroups& groups, const std::vector<char>& save) {
  return groups.contradiction.empty() &&
         std::ranges::all_of(groups.groups, [&](const OperatorGroup& group) {
           return std::ranges::all_of(group.ops, [&](int op) {
             switch (group.rule) {
               case GroupRule::kSave:
                 return save[op] == 1;
               case GroupRule::kRecompute:
                 return save[op] == 0;
               case GroupRule::kFree:
                 break;
             }
             return save[op] == save[group.ops[0]];
           });
         });
}

TEST(GroupOperators, LeavesTheLegalPoliciesAndNoOthers) {
  std::mt19937 random(11);
  int constrained = 0;
  int contradictory = 0;
  for (int round = 0; round < Repetitions(4000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = FewOperators(random);
    const OperatorPatterns patterns = SomePatterns(random);
    const OperatorGroups groups = GroupOperators(sac, patterns);
    int legal = 0;
    int different = 0;
    ForEachPolicy(sac.memory.size(), [&](const std::vector<char>& save) {
      const bool is_legal = KeepsRules(sac, patterns, save);
      legal += is_legal;
      different += is_legal != KeepsGroups(groups, save);
    });
    EXPECT_EQ(different, 0);
    EXPECT_EQ(groups.contradiction.empty(), legal > 0);
    contradictory += legal == 0;
    constrained += legal > 0 && legal < 1 << sac.memory.size();
  }
  EXPECT_GT(constrained, Enough(1500));
  EXPECT_GT(contradictory, Enough(400));
}

TEST(GroupOperators, AreTheClosureOfInPlacePairsAndRandomOperators) {
  std::mt19937 random(12);
  for (int round = 0; round < Repetitions(2000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = FewOperators(random);
    const int n = static_cast<int>(sac.memory.size());
    const OperatorGroups groups = GroupOperators(sac, SomePatterns(random));
    const auto tied = TiesOf(sac);
    ASSERT_EQ(groups.group_of.size(), sac.memory.size());
    for (int a = 0; a < n; ++a) {
      for (int b = 0; b < n; ++b) {
        EXPECT_EQ(groups.group_of[a] == groups.group_of[b], tied[a][b] == 1);
      }
    }
    int first_before = -1;
    int ops = 0;
    for (const GroupId g : groups.groups.ids()) {
      const OperatorGroup& group = groups.groups[g];
      EXPECT_TRUE(std::ranges::is_sorted(group.ops));
      ASSERT_FALSE(group.ops.empty());
      EXPECT_GT(group.ops[0], first_before);
      first_before = group.ops[0];
      int64_t bytes = 0;
      double ms = 0;
      for (const int op : group.ops) {
        EXPECT_EQ(groups.group_of[op], g);
        bytes += sac.memory[op];
        ms += sac.runtimes[op];
        ++ops;
      }
      EXPECT_EQ(group.memory, bytes);
      EXPECT_DOUBLE_EQ(group.runtime, ms);
    }
    EXPECT_EQ(ops, n);
  }
}

TEST(GroupOperators, SumsAreThoseOfTheExtremePolicies) {
  std::mt19937 random(13);
  for (int round = 0; round < Repetitions(2000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = FewOperators(random);
    const OperatorPatterns patterns = SomePatterns(random);
    const OperatorGroups groups = GroupOperators(sac, patterns);
    int64_t total_bytes = 0;
    for (const int64_t bytes : sac.memory) total_bytes += bytes;
    EXPECT_EQ(groups.TotalBytes(), total_bytes);
    if (!groups.contradiction.empty()) continue;
    int64_t least_saved = total_bytes;
    double least_recomputed = 1e300;
    ForEachPolicy(sac.memory.size(), [&](const std::vector<char>& save) {
      if (!KeepsRules(sac, patterns, save)) return;
      int64_t saved = 0;
      double recomputed = 0;
      for (size_t k = 0; k < save.size(); ++k) {
        if (save[k]) {
          saved += sac.memory[k];
        } else {
          recomputed += sac.runtimes[k];
        }
      }
      least_saved = std::min(least_saved, saved);
      least_recomputed = std::min(least_recomputed, recomputed);
    });
    EXPECT_EQ(groups.ForcedBytes(), least_saved);
    EXPECT_NEAR(groups.ForcedRuntime(), least_recomputed,
                1e-12 * (1 + least_recomputed));
    if (patterns.empty()) {
      EXPECT_EQ(ForcedSavedBytes(sac), least_saved);
    }
  }
}

// A contradiction's statement about one operator.
struct SaidOfOperator {
  int op = -1;
  std::string name, rule;
};

// Parses "operator 3 'add' A, operator 1 'mm' B, and both are tied to each
// other" or "operator 3 'add' A and B". Returns two entries, or none for other
// texts.
std::vector<SaidOfOperator> ReadContradiction(const std::string& text) {
  static const std::regex of_two(
      "operator (\\d+) '([^']*)' (.*), operator (\\d+) '([^']*)' (.*), and "
      "both are tied to each other");
  static const std::regex of_one(
      "operator (\\d+) '([^']*)' "
      "(.*must be saved.*?) and ((?:is view-like|must be recomputed).*)");
  std::smatch match;
  if (std::regex_match(text, match, of_two)) {
    return {{std::stoi(match[1]), match[2], match[3]},
            {std::stoi(match[4]), match[5], match[6]}};
  }
  if (std::regex_match(text, match, of_one)) {
    return {{std::stoi(match[1]), match[2], match[3]},
            {std::stoi(match[1]), match[2], match[4]}};
  }
  return {};
}

bool IsIn(const std::vector<int>& ops, int op) {
  return std::ranges::find(ops, op) != ops.end();
}

// Returns whether the rule that the text states for an operator applies.
bool IsTrue(const SacStatistics& sac, const OperatorPatterns& patterns,
            const SaidOfOperator& said, bool of_saving) {
  if (said.op >= static_cast<int>(sac.memory.size()) ||
      said.name != sac.func_names[said.op]) {
    return false;
  }
  const auto is_pattern = [&](const std::vector<std::string>& list,
                              const std::string& before) {
    return std::ranges::any_of(list, [&](const std::string& pattern) {
      return said.rule == before + pattern + "')" &&
             GlobMatches(said.name, pattern);
    });
  };
  if (!of_saving) {
    return (said.rule == "is view-like and must be recomputed" &&
            IsIn(sac.view_like_ops, said.op)) ||
           is_pattern(patterns.recompute, "must be recomputed (--recompute '");
  }
  return (said.rule == "is in place on itself and must be saved" &&
          std::ranges::find(sac.inplace_ops, std::pair(said.op, said.op)) !=
              sac.inplace_ops.end()) ||
         (said.rule == "is random and must be saved here" &&
          sac.force_store_random && IsIn(sac.rand_ops, said.op)) ||
         is_pattern(patterns.save, "must be saved (--save '");
}

TEST(GroupOperators, TellWhichRulesContradict) {
  std::mt19937 random(14);
  int with_pattern = 0;
  int plain_count = 0;
  int of_one_operator = 0;
  for (int round = 0; round < Repetitions(6000) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = FewOperators(random);
    const OperatorPatterns patterns = SomePatterns(random);
    const OperatorGroups groups = GroupOperators(sac, patterns);
    if (groups.contradiction.empty()) {
      EXPECT_FALSE(groups.contradicts_pattern);
      continue;
    }
    SCOPED_TRACE(groups.contradiction);
    const auto said = ReadContradiction(groups.contradiction);
    ASSERT_EQ(said.size(), 2u);
    EXPECT_TRUE(IsTrue(sac, patterns, said[0], true));
    EXPECT_TRUE(IsTrue(sac, patterns, said[1], false));
    EXPECT_EQ(TiesOf(sac)[said[0].op][said[1].op], 1);
    const OperatorGroup& group = groups.groups[groups.group_of[said[0].op]];
    EXPECT_EQ(group.rule, GroupRule::kSave);
    EXPECT_EQ(groups.contradicts_pattern, HasLegalPolicy(sac, {}));
    const bool tells_pattern =
        groups.contradiction.find("(--") != std::string::npos;
    EXPECT_EQ(groups.contradicts_pattern, tells_pattern);
    ++(tells_pattern ? with_pattern : plain_count);
    of_one_operator += said[0].op == said[1].op;
  }
  EXPECT_GT(with_pattern, Enough(150));
  EXPECT_GT(plain_count, Enough(300));
  EXPECT_GT(of_one_operator, Enough(100));
}

TEST(GroupOperators, TellWhatPyTorchAsksForBeforeAPattern) {
  SacStatistics sac = WithMemory({1, 2, 4});
  sac.func_names = {"mm", "view", "bernoulli_"};
  sac.view_like_ops = {1};
  sac.inplace_ops = {{2, 1}, {1, 0}, {2, 2}};
  const OperatorGroups groups =
      GroupOperators(sac, {.save = {"mm"}, .recompute = {}});
  EXPECT_EQ(groups.contradiction,
            "operator 2 'bernoulli_' is in place on itself and must be saved, "
            "operator 1 'view' is view-like and must be recomputed, and both "
            "are tied to each other");
  EXPECT_FALSE(groups.contradicts_pattern);
}

// The cause of a contradiction, patterns or not, depends on the whole module,
// not on the first group that contradicts itself.
TEST(GroupOperators, NeedNoPatternWhereALaterGroupContradictsItself) {
  SacStatistics sac = WithMemory({1, 2});
  sac.func_names = {"view", "copy_"};
  sac.view_like_ops = {0, 1};
  sac.inplace_ops = {{1, 1}};
  const OperatorGroups groups =
      GroupOperators(sac, {.save = {"view"}, .recompute = {}});
  EXPECT_FALSE(groups.contradicts_pattern);
  EXPECT_EQ(groups.contradiction,
            "operator 1 'copy_' is in place on itself and must be saved and "
            "is view-like and must be recomputed");
}

}  // namespace
}  // namespace acplan::graph
