#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/layer_listing.h"
#include "costmodel/calculon/llm/peers.h"
#include "costmodel/calculon/llm/statistics.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/calculon/golden_data.h"

namespace acplan::costmodel {
namespace {

using nlohmann::json;

// Returns the executions that we refuse: a network tier of -1, and "false" for
// false.
const std::set<std::string>& Refused() {
  static const std::set<std::string> refused = {"L0298", "L0342"};
  return refused;
}

// Returns whether an execution is infeasible. Python's message for an execution
// that is wrong by itself, or contradicts model or system, is none of ours.
bool IsInfeasible(const json& error) { return error.at("type") == "Llm.Error"; }

bool IsDivisionByZero(const json& error) {
  return error.at("type") == "ZeroDivisionError";
}

struct Case {
  json golden;
  std::string id() const { return golden.at("id"); }
  const Model& model() const { return GoldenModel(golden.at("model")); }
  const System& system() const { return GoldenSystem(golden.at("system")); }
  Execution execution() const {
    return ParseExecution(golden.at("execution").dump(), id());
  }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (json& golden : GoldenLines("llm.jsonl.gz")) {
    cases.push_back({std::move(golden)});
  }
  return cases;
}

TEST(GoldenLlm, EveryStatisticOfEveryFeasibleCase) {
  int compared = 0;
  int equal = 0;
  int feasible = 0;
  for (const Case& one : Cases()) {
    if (!one.golden.contains("stats") || Refused().contains(one.id())) continue;
    const Execution execution = one.execution();
    const Evaluation evaluation =
        Evaluate(one.model(), one.system(), execution);
    ASSERT_TRUE(evaluation.verdict.Fits()) << one.id();
    const Statistics statistics =
        ComputeStatistics(one.model(), one.system(), execution, evaluation);
    const json& expected = one.golden.at("stats");
    EXPECT_EQ(expected.size(), kStatisticNames.size());
    for (const std::string_view name : kStatisticNames) {
      const double ours = Statistic(statistics, name);
      const json& theirs = expected.at(std::string(name));
      EXPECT_TRUE(IsClose(ours, theirs))
          << one.id() << " " << name << ": " << ours << " for " << theirs;
      equal += theirs.is_null() || theirs.get<double>() == ours;
      ++compared;
    }
    ++feasible;
  }
  EXPECT_GE(feasible, 98);
  // The order of operations is the same.
  EXPECT_EQ(equal, compared);
}

TEST(GoldenLlm, EveryInfeasibleCaseForTheSameReason) {
  int infeasible = 0;
  for (const Case& one : Cases()) {
    if (!one.golden.contains("error")) continue;
    const json& error = one.golden.at("error");
    if (!IsInfeasible(error)) continue;
    const Evaluation evaluation =
        Evaluate(one.model(), one.system(), one.execution());
    const Verdict& verdict = evaluation.verdict;
    ASSERT_TRUE(verdict.IsInfeasible()) << one.id();
    const std::string message = error.at("message");
    if (verdict.rule == Rule::kMem1) {
      EXPECT_THAT(message, testing::StartsWith("Mem tier1")) << one.id();
    } else if (verdict.rule == Rule::kMem2) {
      EXPECT_THAT(message, testing::StartsWith("Mem tier2")) << one.id();
    } else {
      EXPECT_EQ(DescribeInfeasible(verdict), message) << one.id();
    }
    ++infeasible;
  }
  EXPECT_EQ(infeasible, 59);
}

TEST(GoldenLlm, WrongExecutionsAreRefused) {
  int refused = 0;
  for (const Case& one : Cases()) {
    const bool is_ours = Refused().contains(one.id());
    if (!is_ours && !one.golden.contains("error")) continue;
    if (!is_ours && (IsInfeasible(one.golden.at("error")) ||
                     IsDivisionByZero(one.golden.at("error")))) {
      continue;
    }
    ++refused;
    try {
      const Execution execution = one.execution();
      const Verdict verdict = CheckFit(one.model(), one.system(), execution);
      EXPECT_FALSE(verdict.Fits()) << one.id();
      EXPECT_FALSE(verdict.IsInfeasible()) << one.id();
      EXPECT_THAT(
          DescribeContradiction(verdict, one.model(), one.system(), execution),
          testing::HasSubstr("expected"))
          << one.id();
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(one.id() + ": "));
    }
  }
  EXPECT_GE(refused, 39);
}

TEST(GoldenLlm, NoBandwidthWhereThereIsNoTimeToOffload) {
  int cases = 0;
  for (const Case& one : Cases()) {
    if (!one.golden.contains("error") ||
        !IsDivisionByZero(one.golden.at("error"))) {
      continue;
    }
    const Execution execution = one.execution();
    const Evaluation evaluation =
        Evaluate(one.model(), one.system(), execution);
    ASSERT_TRUE(evaluation.verdict.Fits()) << one.id();
    const Statistics statistics =
        ComputeStatistics(one.model(), one.system(), execution, evaluation);
    EXPECT_TRUE(std::isnan(Statistic(statistics, "act_offload_bw_req")))
        << one.id();
    EXPECT_TRUE(std::isnan(Statistic(statistics, "offload_mem_bw_req")));
    EXPECT_GT(Statistic(statistics, "sample_rate"), 0);
    ++cases;
  }
  EXPECT_EQ(cases, 5);
}

const Case& Find(const std::vector<Case>& cases, const std::string& id) {
  return *std::ranges::find_if(cases,
                               [&](const Case& one) { return one.id() == id; });
}

TEST(GoldenLlm, EveryListedLayer) {
  const std::vector<Case> cases = Cases();
  const std::vector<json> listings = GoldenLines("layers.jsonl.gz");
  EXPECT_EQ(listings.size(), 12);
  for (const json& golden : listings) {
    const Case& one = Find(cases, golden.at("id"));
    const std::vector<LayerListing> layers =
        ListLayers(one.model(), one.system(), one.execution());
    const json& expected = golden.at("layers");
    ASSERT_EQ(layers.size(), expected.size()) << one.id();
    for (size_t i = 0; i < layers.size(); ++i) {
      EXPECT_EQ(layers[i].name, expected[i].at("name"));
      EXPECT_EQ(expected[i].size(), kLayerStatisticNames.size() + 1);
      for (size_t k = 0; k < kLayerStatisticNames.size(); ++k) {
        const json& theirs =
            expected[i].at(std::string(kLayerStatisticNames[k]));
        EXPECT_TRUE(IsClose(layers[i].values[k], theirs))
            << one.id() << " " << layers[i].name << " "
            << kLayerStatisticNames[k] << ": " << layers[i].values[k] << " for "
            << theirs;
      }
    }
  }
}

TEST(GoldenLlm, EveryListedPeer) {
  const std::vector<Case> cases = Cases();
  const std::vector<json> listings = GoldenLines("peers.jsonl.gz");
  EXPECT_EQ(listings.size(), 23);
  for (const json& golden : listings) {
    const Execution execution = Find(cases, golden.at("id")).execution();
    const json& expected = golden.at("peers");
    ASSERT_EQ(expected.size(), static_cast<size_t>(execution.num_procs));
    for (const auto& [id, theirs] : expected.items()) {
      const Peers peers = PeersOf(execution, std::stoll(id));
      json ours = json::object();
      if (!peers.tensor.empty()) ours["tensor"] = peers.tensor;
      if (peers.pipeline) ours["pipeline"] = *peers.pipeline;
      if (!peers.data.empty()) ours["data"] = peers.data;
      EXPECT_EQ(ours, theirs) << golden.at("id") << " " << id;
    }
  }
}

}  // namespace
}  // namespace acplan::costmodel
