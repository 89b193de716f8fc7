#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "graph/base/flag.h"
#include "problems/trace/policies/need_graph.h"
#include "problems/trace/policies/need_policies.h"
#include "problems/trace/policies/policy_paths.h"

namespace acplan::problems {
namespace {

using graph::GroupId;
using graph::IdAt;

constexpr int64_t kBase = 100'000'000;

// A block is some operators in a row, whose results backward asks for: the bytes of
// each, and its ms.
struct BlockOperator {
  int64_t bytes;
  double ms;
};
using Block = std::vector<BlockOperator>;

// A run of equal blocks that need nothing of each other.
struct LongRun {
  LongRun(const Block& operators, int blocks)
      : block(operators), count(blocks) {
    int place = static_cast<int>(block.size()) * count;
    for (int b = 0; b < count; ++b) {
      for (const BlockOperator& op : block) {
        const auto result = IdAt<ResultId>(graph.results++);
        graph.operators.push_back({.place = --place,
                                   .group = GroupId{place},
                                   .ms = op.ms,
                                   .makes = {result},
                                   .requests = {result}});
        choices.bytes.push_back(op.bytes);
        choices.may_keep.push_back(true);
        choices.may_save.push_back(true);
        choices.may_rerun.push_back(true);
      }
    }
    choices.base_bytes = kBase;
  }

  // Returns the least ms of policies by the bytes that they keep: block by block.
  std::map<int64_t, double> LeastMs() const {
    std::map<int64_t, double> all = {{0, 0}};
    for (int b = 0; b < count; ++b) {
      for (const BlockOperator& op : block) {
        std::map<int64_t, double> next;
        const auto offer = [&](int64_t bytes, double ms) {
          const auto [place, is_new] = next.try_emplace(bytes, ms);
          if (!is_new) place->second = std::min(place->second, ms);
        };
        for (const auto& [bytes, ms] : all) {
          offer(bytes + op.bytes, ms);
          offer(bytes, ms + op.ms);
        }
        all.clear();
        double least = std::numeric_limits<double>::infinity();
        for (const auto& [bytes, ms] : next) {
          if (ms >= least) continue;
          least = ms;
          all.emplace(bytes, ms);
        }
      }
    }
    return all;
  }

  // Returns the bytes and ms of a policy by its uses.
  PolicyPoint EffectOf(const GroupUses& uses) const {
    PolicyPoint effect = {.bytes = kBase};
    for (const NeedGraph::Operator& op : graph.operators) {
      const bool is_saved = uses[op.group] == GroupUse::kSaved;
      EXPECT_NE(uses[op.group], GroupUse::kNone);
      effect.bytes -= is_saved ? choices.bytes[op.makes.front()] : 0;
      effect.ms += is_saved ? 0 : op.ms;
    }
    return effect;
  }

  Block block;
  int count;
  NeedGraph graph;
  NeedChoices choices;
};

// The bytes have a large common unit: all policies, in a walk of more labels than other
// long runs may have.
TEST(LongRunPoliciesTest, AreExactWhereBytesHaveACommonUnit) {
  const LongRun run({{4096, 1}, {12288, 2.75}, {28672, 7.25}}, 300);
  const NeedPolicies policies = PoliciesOf(run.graph, run.choices);
  const std::map<int64_t, double> least_ms = run.LeastMs();
  ASSERT_GT(least_ms.size(), 3000U);
  ASSERT_EQ(policies.points().size(), least_ms.size());
  size_t place = policies.points().size();
  for (const auto& [kept_bytes, ms] : least_ms) {
    const PolicyPoint& point = policies.points()[--place];
    ASSERT_EQ(point.bytes, kBase - kept_bytes);
    ASSERT_EQ(point.ms, ms);
    ASSERT_TRUE(policies.IsExact(place));
    if (place % 500 == 0) {
      EXPECT_EQ(run.EffectOf(policies.UsesOf(place)), point);
    }
  }
}

// The bytes have none: no policy is below the points, each point's policy costs no less
// than it says and discards as much, and no point is far below its policy, though all
// blocks change at the same prices.
TEST(LongRunPoliciesTest, AreNearTheirPointsElsewhere) {
  std::mt19937 random(1);
  for (int round = 0; round < 2; ++round) {
    SCOPED_TRACE(round);
    Block block(5);
    for (BlockOperator& op : block) {
      op = {.bytes = 10'000 + static_cast<int64_t>(random() % 10'000),
            .ms = static_cast<double>(1 + random() % 1000) / 100};
    }
    const LongRun run(block, 200);
    const NeedPolicies policies = PoliciesOf(run.graph, run.choices);
    ASSERT_FALSE(policies.IsExact(0));
    const std::map<int64_t, double> least_ms = run.LeastMs();
    ASSERT_LT(policies.points().size(), least_ms.size());
    for (const auto& [kept_bytes, ms] : least_ms) {
      const auto point = std::ranges::lower_bound(
          policies.points(), kBase - kept_bytes, {}, &PolicyPoint::bytes);
      ASSERT_NE(point, policies.points().end());
      EXPECT_LE(point->ms, ms * (1 + 1e-9));
    }
    const double most_ms = policies.points().back().ms;
    for (size_t p = 0; p < policies.points().size(); ++p) {
      const PolicyPoint& point = policies.points()[p];
      const PolicyPoint effect = run.EffectOf(policies.UsesOf(p));
      EXPECT_GE(effect.bytes, point.bytes);
      EXPECT_GE(effect.ms, point.ms * (1 - 1e-9));
      EXPECT_LE(effect.ms, point.ms + most_ms / 20);
    }
  }
}

TEST(PolicyPathsTest, HaveTheUseOfEachStep) {
  std::mt19937 random(2);
  for (const size_t steps : {1U, 15U, 16U, 17U, 100U}) {
    SCOPED_TRACE(steps);
    PolicyPaths paths;
    std::vector<GroupId> group_of_step;
    for (size_t k = 0; k < steps; ++k) {
      group_of_step.push_back(IdAt<GroupId>(steps - 1 - k));
    }
    // Two paths that part in the middle.
    std::vector<GroupUses> expected(2, GroupUses(steps, GroupUse::kNone));
    std::vector<MoveId> last(2, graph::kNone);
    std::vector<RecentUses> recent(2, 0);
    for (size_t k = 0; k < steps; ++k) {
      const auto shared_use = static_cast<GroupUse>(random() % 3);
      for (size_t p = 0; p < 2; ++p) {
        const GroupUse use =
            k < steps / 2 ? shared_use : static_cast<GroupUse>(random() % 3);
        expected[p][group_of_step[k]] = use;
        recent[p] = PolicyPaths::With(recent[p], k, use);
        if (!PolicyPaths::EndsMove(k, steps)) continue;
        last[p] = paths.Add(last[p], recent[p]);
        recent[p] = 0;
      }
    }
    for (size_t p = 0; p < 2; ++p) {
      EXPECT_EQ(paths.UsesOf(last[p], group_of_step, steps), expected[p]);
      PolicyPaths copy;
      EXPECT_EQ(copy.UsesOf(copy.AddPath(paths.MovesOf(last[p])), group_of_step,
                            steps),
                expected[p]);
    }
  }
}

}  // namespace
}  // namespace acplan::problems
