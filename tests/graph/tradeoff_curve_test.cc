#include "graph/profile/tradeoff_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "graph/base/file_io.h"
#include "graph/profile/piecewise_linear_fit.h"
#include "tests/graph/random_profile.h"
#include "tests/graph/test_files.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using nlohmann::json;
using test_support::Enough;
using test_support::Repetitions;
using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

// Returns the example of PyTorch's greedy order.
SacStatistics EightOperators() {
  SacStatistics sac;
  sac.func_names = {"copy_",          "add",    "div", "mm",
                    "native_dropout", "linear", "t",   "relu_"};
  sac.runtimes = {5, 5, 8, 15, 15, 9, 1, 5};
  sac.memory = {0, 100, 100, 120, 0, 100, 0, 0};
  sac.view_like_ops = {6};
  sac.rand_ops = {4};
  sac.inplace_ops = {{0, 0}, {7, 5}};
  return sac;
}

std::vector<int> Heads(const GreedyOrder& order) {
  std::vector<int> heads;
  for (const GreedyItem& item : order.items) heads.push_back(item.head);
  return heads;
}

TEST(GreedyOrderTest, OfEightOperators) {
  const GreedyOrder order = ComputeGreedyOrder(EightOperators());
  EXPECT_THAT(order.stored_ops, ElementsAre(0));
  EXPECT_THAT(order.recomputed_ops, ElementsAre(6));
  EXPECT_THAT(order.inplace_op_groups,
              ElementsAre(Pair(0, ElementsAre(0)), Pair(5, ElementsAre(5, 7))));
  EXPECT_THAT(order.random_ops_group, ElementsAre(Pair(4, ElementsAre(4))));
  EXPECT_THAT(Heads(order), ElementsAre(1, 2, 3, 5, 4));
  EXPECT_THAT(order.items[3].ops, ElementsAre(5, 7));
  EXPECT_EQ(order.items[3].memory, 100);
  EXPECT_EQ(order.items[3].runtime, 14);
  std::vector<double> msps;
  for (const GreedyItem& item : order.items) msps.push_back(item.msps);
  EXPECT_THAT(
      msps, ElementsAre(20, 12.5, 8, DoubleNear(7.142857142857143, 1e-14), 0));
}

TEST(GreedyCurveTest, OfEightOperators) {
  const SacStatistics sac = EightOperators();
  const auto near = [](double x, double y) {
    return Pair(DoubleNear(x, 1e-12), DoubleNear(y, 1e-12));
  };
  const auto curve = GreedyCurve(sac, ComputeGreedyOrder(sac));
  EXPECT_THAT(curve,
              ElementsAre(near(.01, 1. / 63), near(.01 + 5. / 21, 6. / 63),
                          near(.01 + 10. / 21, 14. / 63),
                          near(.01 + 16. / 21, 29. / 63), near(1.01, 1)));
  EXPECT_THAT(
      FittedPoints(curve),
      ElementsAre(near(.01, 6. / 63), near(.01 + 5. / 21, 14. / 63),
                  near(.01 + 10. / 21, 29. / 63), near(.01 + 16. / 21, 1)));
}

TEST(FitTradeoffTest, OfEightOperators) {
  const TradeoffFit fit = FitTradeoff(EightOperators());
  EXPECT_EQ(fit.sac_memory, 420);
  EXPECT_EQ(fit.sac_runtime, 63);
  EXPECT_EQ(fit.n_segments, 2);
  const auto near = [](double x) {
    return testing::Optional(DoubleNear(x, 3e-6));
  };
  EXPECT_THAT(fit.slopes, ElementsAre(near(.533333), near(1.888889)));
  EXPECT_THAT(fit.intercepts, ElementsAre(near(.089905), near(-.458044)));
  EXPECT_THAT(fit.breakpoints,
              ElementsAre(near(.01), near(.404225), near(.771905)));
}

TEST(GreedyOrderTest, EqualRatiosGoByTheSmallerHead) {
  SacStatistics sac;
  sac.func_names = {"a", "b", "c", "d", "e"};
  sac.runtimes = {.1 + .2, .3, .3, 0, 0};
  sac.memory = {3, 3, 3, 0, 7};
  EXPECT_THAT(Heads(ComputeGreedyOrder(sac)), ElementsAre(3, 4, 0, 1, 2));
  sac.runtimes = {.3 * (1 + 2e-9), .3, .3, 0, 0};
  EXPECT_THAT(Heads(ComputeGreedyOrder(sac)), ElementsAre(3, 4, 1, 2, 0));
}

TEST(GreedyOrderTest, RandomOperatorsAreOneCandidate) {
  SacStatistics sac = EightOperators();
  sac.rand_ops = {2, 4};
  EXPECT_THAT(ComputeGreedyOrder(sac).random_ops_group,
              ElementsAre(Pair(2, ElementsAre(2, 4))));
  EXPECT_THAT(Heads(ComputeGreedyOrder(sac)), ElementsAre(1, 3, 5, 2));
}

TEST(GreedyOrderTest, RandomOperatorsMayHaveToBeStored) {
  SacStatistics sac = EightOperators();
  sac.rand_ops = {4, 7};
  sac.force_store_random = true;
  GreedyOrder order = ComputeGreedyOrder(sac);
  EXPECT_THAT(order.stored_ops, ElementsAre(0, 4, 5));
  EXPECT_THAT(Heads(order), ElementsAre(1, 2, 3));
  // An even number of them in one group.
  sac.rand_ops = {5, 7};
  order = ComputeGreedyOrder(sac);
  EXPECT_THAT(order.stored_ops, ElementsAre(0, 5));
  EXPECT_THAT(Heads(order), ElementsAre(1, 2, 3, 4));
}

TEST(GreedyCurveTest, EndsAtEverythingThoughItIsStored) {
  SacStatistics sac = EightOperators();
  sac.memory[0] = 80;
  const auto curve = GreedyCurve(sac, ComputeGreedyOrder(sac));
  EXPECT_THAT(curve[curve.size() - 2],
              Pair(DoubleNear(.01 + 420. / 500, 1e-12), 58. / 63));
  EXPECT_THAT(curve.back(), Pair(DoubleNear(1.01, 1e-12), 1));
}

TEST(GreedyCurveTest, WithoutMemoryOrTime) {
  SacStatistics sac;
  sac.func_names = {"a", "b"};
  sac.runtimes = {0, 0};
  sac.memory = {1, 3};
  const auto curve = [&] { return GreedyCurve(sac, ComputeGreedyOrder(sac)); };
  EXPECT_THAT(curve(), ElementsAre(Pair(.01, 0), Pair(.26, 0), Pair(1.01, 0)));
  sac.memory = {0, 0};
  EXPECT_THAT(curve(), ElementsAre(Pair(.01, 0)));
  sac.runtimes = {1, 1};
  EXPECT_THAT(curve(), ElementsAre(Pair(.01, 1)));
  EXPECT_THAT(GreedyCurve({}, ComputeGreedyOrder({})),
              ElementsAre(Pair(.01, 0)));
}

TEST(FitTradeoffTest, WithNothingToFit) {
  SacStatistics sac;
  sac.func_names = {"view", "mm"};
  sac.runtimes = {1, 3};
  sac.memory = {0, 8};
  sac.view_like_ops = {0};
  for (const int64_t bytes : {8, 0}) {
    sac.memory[1] = bytes;
    const TradeoffFit fit = FitTradeoff(sac);
    EXPECT_EQ(fit.sac_memory, bytes);
    EXPECT_EQ(fit.sac_runtime, 4);
    EXPECT_EQ(fit.n_segments, 1);
    EXPECT_THAT(fit.slopes, ElementsAre(.75));
    EXPECT_THAT(fit.intercepts, ElementsAre(.25));
    EXPECT_THAT(fit.breakpoints, ElementsAre(0, 1));
  }
  EXPECT_THAT(FitTradeoff({}).tradeoff_curve, ElementsAre(Pair(.01, 0)));
  EXPECT_THAT(FitTradeoff({}).slopes, ElementsAre(1));
}

TEST(FitTradeoffTest, HasNoMoreSegmentsThanPyTorch) {
  const SacStatistics sac = EightOperators();
  EXPECT_EQ(FitTradeoff(sac, 1).n_segments, 1);
  EXPECT_EQ(FitTradeoff(sac, 5).n_segments, 2);
}

TEST(FitTradeoffTest, IsSoundForRandomStatistics) {
  std::mt19937 random(31);
  int checked = 0;
  for (int round = 0; round < Repetitions(100); ++round) {
    for (const Module& module : RandomProfile(random, 10, 10).modules) {
      if (!module.sac) continue;
      const GreedyOrder order = ComputeGreedyOrder(*module.sac);
      for (size_t k = 1; k < order.items.size(); ++k) {
        EXPECT_GE(order.items[k - 1].msps, order.items[k].msps * (1 - 1e-9));
      }
      const TradeoffFit fit = FitTradeoff(*module.sac, 3);
      const auto& curve = fit.tradeoff_curve;
      EXPECT_EQ(curve, GreedyCurve(*module.sac, order));
      for (size_t k = 1; k < curve.size(); ++k) {
        EXPECT_LT(curve[k - 1].first, curve[k].first);
        EXPECT_LE(curve[k - 1].second, curve[k].second);
      }
      ASSERT_GE(fit.n_segments, 1);
      ASSERT_EQ(fit.breakpoints.size(),
                static_cast<size_t>(fit.n_segments) + 1);
      for (int k = 0; k < fit.n_segments; ++k) {
        EXPECT_LT(*fit.breakpoints[k], *fit.breakpoints[k + 1]);
        EXPECT_TRUE(std::isfinite(*fit.slopes[k]));
        EXPECT_TRUE(std::isfinite(*fit.intercepts[k]));
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, Enough(100));
}

// PyTorch's results for the modules of a bundled profile.
class PyTorchTest : public testing::TestWithParam<std::filesystem::path> {
 protected:
  PyTorchTest()
      : profile_(ReadProfile(GetParam())),
        modules_(json::parse(ReadFile(GetParam())).at("modules")) {}

  // Checks each module with operators, in the order of the file.
  template <typename Check>
  void ForEachModule(Check check) const {
    int checked = 0;
    for (size_t i = 0; i < profile_.modules.size(); ++i) {
      if (!profile_.modules[i].sac) continue;
      SCOPED_TRACE(profile_.modules[i].fqn);
      check(profile_.modules[i], modules_[i]);
      ++checked;
    }
    EXPECT_GT(checked, 10);
  }

 private:
  Profile profile_;
  json modules_;
};

std::map<int, std::vector<int>> Groups(const json& groups) {
  std::map<int, std::vector<int>> result;
  for (const auto& [head, members] : groups.items()) {
    result[std::stoi(head)] = members.get<std::vector<int>>();
    std::ranges::sort(result[std::stoi(head)]);
  }
  return result;
}

std::vector<int> Sorted(const json& ops) {
  std::vector<int> result = ops;
  std::ranges::sort(result);
  return result;
}

TEST_P(PyTorchTest, HasTheSameGreedyOrder) {
  ForEachModule([](const Module& module, const json& torch) {
    const json& greedy = torch.at("torch_greedy");
    const GreedyOrder order = ComputeGreedyOrder(*module.sac);
    EXPECT_EQ(order.stored_ops, Sorted(greedy.at("stored_ops")));
    EXPECT_EQ(order.recomputed_ops, Sorted(greedy.at("recomputed_ops")));
    EXPECT_EQ(order.inplace_op_groups, Groups(greedy.at("inplace_op_groups")));
    EXPECT_EQ(order.random_ops_group, Groups(greedy.at("random_ops_group")));

    // PyTorch's order, with its ties by head.
    struct Item {
      int head;
      int64_t memory;
      double runtime, msps;
    };
    std::vector<Item> items;
    for (const json& meta : greedy.at("msps_meta")) {
      items.push_back({meta[0], meta[1], meta[2], meta[3]});
    }
    for (auto first = items.begin(); first != items.end();) {
      const auto last = std::find_if(first, items.end(), [&](const Item& item) {
        return item.msps < first->msps * (1 - 1e-9);
      });
      std::ranges::sort(first, last, {}, &Item::head);
      first = last;
    }
    ASSERT_EQ(order.items.size(), items.size());
    for (size_t k = 0; k < items.size(); ++k) {
      const GreedyItem& item = order.items[k];
      ASSERT_EQ(item.head, items[k].head) << "place " << k;
      EXPECT_EQ(item.memory, items[k].memory);
      EXPECT_NEAR(item.runtime, items[k].runtime, 1e-9 * items[k].runtime);
      EXPECT_NEAR(item.msps, items[k].msps, 1e-9 * items[k].msps);
    }
  });
}

TEST_P(PyTorchTest, HasTheSameCurve) {
  ForEachModule([](const Module& module, const json& torch) {
    const auto& expected = module.torch_fit->tradeoff_curve;
    if (expected.empty()) {
      EXPECT_EQ(module.torch_fit->sac_memory, 0);
      return;
    }
    GreedyOrder order = ComputeGreedyOrder(*module.sac);
    std::vector<GreedyItem> items;
    for (const json& meta : torch.at("torch_greedy").at("msps_meta")) {
      items.push_back(*std::ranges::find(order.items, meta[0].get<int>(),
                                         &GreedyItem::head));
    }
    order.items = items;
    const auto curve = GreedyCurve(*module.sac, order);
    ASSERT_EQ(curve.size(), expected.size());
    for (size_t k = 0; k < curve.size(); ++k) {
      EXPECT_NEAR(curve[k].first, expected[k].first, 1e-9);
      EXPECT_NEAR(curve[k].second, expected[k].second, 1e-9);
    }
  });
}

TEST_P(PyTorchTest, FitsNoBetter) {
  ForEachModule([](const Module& module, const json&) {
    const TradeoffFit& torch = *module.torch_fit;
    const TradeoffFit fit = FitTradeoff(*module.sac);
    EXPECT_EQ(fit.sac_memory, torch.sac_memory);
    EXPECT_NEAR(fit.sac_runtime, torch.sac_runtime, 1e-9 * torch.sac_runtime);
    if (torch.n_segments == 0 || !torch.slopes[0]) return;
    PiecewiseLinear theirs;
    for (const auto& slope : torch.slopes) theirs.slopes.push_back(*slope);
    for (const auto& b : torch.intercepts) theirs.intercepts.push_back(*b);
    for (const auto& x : torch.breakpoints) theirs.breakpoints.push_back(*x);
    const auto points = FittedPoints(torch.tradeoff_curve);
    const double error =
        SquaredError(FitPiecewiseLinear(points, torch.n_segments), points);
    EXPECT_LE(error, SquaredError(theirs, points) * (1 + 1e-9) + 1e-15);
    EXPECT_LE(fit.n_segments, torch.n_segments);
  });
}

INSTANTIATE_TEST_SUITE_P(Profiles, PyTorchTest,
                         testing::ValuesIn(RealProfiles()),
                         [](const auto& test) {
                           const std::string name = test.param.filename();
                           return name.substr(0, name.find('.'));
                         });

}  // namespace
}  // namespace acplan::graph
