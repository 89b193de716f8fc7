#include "costmodel/planning/block_policies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <string_view>
#include <vector>

#include "tests/costmodel/golden_data.h"
#include "tests/support/repetitions.h"

namespace acplan::costmodel {
namespace {

using test_support::Repetitions;

const System& TestSystem() { return GoldenSystem("systems/a100_80g.json"); }

Model TestModel() {
  return {.hidden = 512,
          .feedforward = 1792,
          .seq_size = 256,
          .attn_heads = 8,
          .attn_size = 48,
          .num_blocks = 4};
}

std::vector<Execution> AllKinds() {
  std::vector<Execution> executions;
  for (const auto attention :
       {AttentionType::kMultihead, AttentionType::kMultiquery}) {
    for (const auto comm :
         {TensorCommType::kAllReduce, TensorCommType::kScatteredSend,
          TensorCommType::kScattered}) {
      for (const auto overlap :
           {TensorOverlap::kNone, TensorOverlap::kRing, TensorOverlap::kPipe}) {
        for (const bool is_fused : {false, true}) {
          for (const int64_t peers : {1, 2, 8}) {
            if (peers == 1 && overlap != TensorOverlap::kNone) continue;
            executions.push_back({.num_procs = peers,
                                  .tensor_par = peers,
                                  .batch_size = 8,
                                  .microbatch_size = 2,
                                  .fused_activation = is_fused,
                                  .attention_type = attention,
                                  .tensor_par_comm_type = comm,
                                  .tensor_par_overlap = overlap});
          }
        }
      }
    }
  }
  return executions;
}

// A bit an operator: what runs again, until nothing more is missing.
uint64_t NaiveRuns(const BlockOperators& block, KeptTensors kept) {
  uint64_t runs = 0;
  const auto is_kept = [&](int tensor) {
    return tensor >= 0 && (kept >> tensor & 1) != 0;
  };
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    if (block.tensors[i].is_required && !is_kept(static_cast<int>(i))) {
      runs |= uint64_t{1} << block.tensors[i].maker;
    }
  }
  for (uint64_t before = 0; before != runs;) {
    before = runs;
    for (size_t i = 0; i < block.operators.size(); ++i) {
      if ((runs >> i & 1) == 0) continue;
      for (const int input : block.operators[i].inputs) {
        if (!is_kept(block.operators[input].output)) {
          runs |= uint64_t{1} << input;
        }
      }
    }
  }
  return runs;
}

double SumOver(uint64_t runs, const std::vector<double>& costs) {
  double sum = 0;
  for (size_t i = 0; i < costs.size(); ++i) {
    if ((runs >> i & 1) != 0) sum += costs[i];
  }
  return sum;
}

double BytesOf(const BlockOperators& block, KeptTensors kept) {
  double bytes = block.input_bytes;
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    if ((kept >> i & 1) != 0) bytes += block.tensors[i].bytes;
  }
  return bytes;
}

// Least cost by bytes: of all subsets those that no other beats.
std::vector<BlockPolicy> Enumerate(const BlockOperators& block,
                                   const std::vector<uint64_t>& runs,
                                   const std::vector<double>& costs) {
  std::vector<BlockPolicy> all;
  for (KeptTensors kept = 0; kept < runs.size(); ++kept) {
    all.push_back({kept, BytesOf(block, kept), {SumOver(runs[kept], costs)}});
  }
  std::ranges::sort(all, [](const BlockPolicy& a, const BlockPolicy& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.costs < b.costs;
  });
  std::vector<BlockPolicy> best;
  for (const BlockPolicy& policy : all) {
    if (best.empty() || policy.costs[0] < best.back().costs[0] - 1e-9) {
      best.push_back(policy);
    }
  }
  return best;
}

std::vector<PolicyCosts> OneMeasure(const std::vector<double>& costs) {
  std::vector<PolicyCosts> all;
  for (const double cost : costs) all.push_back({cost});
  return all;
}

TEST(BlockPolicies, AreThoseOfAllSubsetsThatNoOtherBeats) {
  std::mt19937 random(3);
  const std::vector<Execution> kinds = AllKinds();
  for (size_t k = 0; k < kinds.size(); k += test_support::kEvery) {
    const BlockOperators block =
        ListOperators(TestModel(), TestSystem(), kinds[k]);
    ASSERT_LE(block.operators.size(), 64);
    ASSERT_GE(block.tensors.size(), 9);
    ASSERT_LE(block.tensors.size(), 16);
    std::vector<uint64_t> runs;
    for (KeptTensors kept = 0; kept <= AllTensors(block); ++kept) {
      runs.push_back(NaiveRuns(block, kept));
    }
    for (int i = 0; i < 4; ++i) {
      std::vector<double> costs;
      for (size_t o = 0; o < block.operators.size(); ++o) {
        costs.push_back(
            i < 2    ? std::uniform_real_distribution<double>(0, 10)(random)
            : i == 2 ? std::uniform_real_distribution<double>(-3, 10)(random)
                     : std::uniform_int_distribution<int>(-1, 3)(random));
      }
      const std::vector<BlockPolicy> policies =
          FindPolicies(block, OneMeasure(costs));
      const std::vector<BlockPolicy> expected = Enumerate(block, runs, costs);
      ASSERT_EQ(policies.size(), expected.size());
      for (size_t p = 0; p < policies.size(); ++p) {
        const BlockPolicy& policy = policies[p];
        ASSERT_EQ(policy.bytes, expected[p].bytes);
        ASSERT_NEAR(policy.costs[0], expected[p].costs[0], 1e-9);
        ASSERT_EQ(BytesOf(block, policy.kept), policy.bytes);
        ASSERT_NEAR(SumOver(runs[policy.kept], costs), policy.costs[0], 1e-9);
      }
    }
  }
}

bool Beats(const BlockPolicy& a, const BlockPolicy& b) {
  return a.bytes <= b.bytes &&
         std::ranges::equal(a.costs, b.costs, std::less_equal<>());
}

// Whole numbers, so that sums are exact in any order.
TEST(BlockPolicies, OfThreeMeasuresAreThoseThatNoSubsetBeats) {
  std::mt19937 random(5);
  for (const Execution& execution : AllKinds()) {
    const BlockOperators block =
        ListOperators(TestModel(), TestSystem(), execution);
    std::array<std::vector<double>, 3> measures;
    std::vector<PolicyCosts> costs;
    for (size_t o = 0; o < block.operators.size(); ++o) {
      costs.emplace_back();
      for (size_t k = 0; k < measures.size(); ++k) {
        costs.back()[k] = std::uniform_int_distribution<int>(0, 5)(random);
        measures[k].push_back(costs.back()[k]);
      }
    }
    const std::vector<BlockPolicy> policies = FindPolicies(block, costs);
    ASSERT_TRUE(std::ranges::is_sorted(policies, {}, &BlockPolicy::bytes));
    for (KeptTensors kept = 0; kept <= AllTensors(block); ++kept) {
      const uint64_t runs = NaiveRuns(block, kept);
      BlockPolicy subset{kept, BytesOf(block, kept), {}};
      for (size_t k = 0; k < measures.size(); ++k) {
        subset.costs[k] = SumOver(runs, measures[k]);
      }
      int beating = 0;
      for (const BlockPolicy& policy : policies) {
        if (policy.kept == kept) {
          ASSERT_EQ(policy.bytes, subset.bytes);
          ASSERT_EQ(policy.costs, subset.costs);
        }
        if (!Beats(policy, subset)) continue;
        ++beating;
        // Its equal, not its better, where it is one of them.
        if (policy.bytes == subset.bytes && policy.costs == subset.costs) break;
        ASSERT_TRUE(std::ranges::none_of(policies, [&](const BlockPolicy& one) {
          return one.kept == kept;
        }));
        break;
      }
      ASSERT_GT(beating, 0);
    }
  }
}

TEST(BlockOperators, WhatRunsAgainIsWhatIsMissing) {
  std::mt19937 random(4);
  for (const Execution& execution : AllKinds()) {
    const BlockOperators block =
        ListOperators(TestModel(), TestSystem(), execution);
    for (int i = 0; i < Repetitions(200); ++i) {
      const KeptTensors kept =
          static_cast<KeptTensors>(random()) & AllTensors(block);
      const std::vector<bool> runs = RunsAgain(block, kept);
      const uint64_t expected = NaiveRuns(block, kept);
      for (size_t o = 0; o < runs.size(); ++o) {
        ASSERT_EQ(runs[o], (expected >> o & 1) != 0);
      }
    }
  }
}

// Returns the bytes of the input of a gathering by itself, which are kept
// although the backward pass reads them only to gather them again.
double ShardBytes(const Execution& execution) {
  const Block block = BuildBlock(TestModel(), execution, AllCorrections());
  double bytes = 0;
  for (const Layer& layer : block.layers()) {
    if (layer.comm.kind == LayerComm::Kind::kSeparate &&
        layer.stores_activation) {
      bytes += layer.activation_bytes;
    }
  }
  return bytes;
}

BlockCosts CostsOf(Execution execution, Recompute recompute) {
  execution.activation_recompute = recompute;
  return ComputeBlockCosts(TestModel(), TestSystem(), execution,
                           AllCorrections());
}

KeptTensors RequiredTensors(const BlockOperators& block) {
  KeptTensors kept = 0;
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    if (block.tensors[i].is_required) kept |= KeptTensors{1} << i;
  }
  return kept;
}

TEST(BlockOperators, KeepingWhatIsRequiredRunsNothingAgain) {
  for (const Execution& execution : AllKinds()) {
    const BlockOperators block =
        ListOperators(TestModel(), TestSystem(), execution);
    const BlockCosts none = CostsOf(execution, Recompute::kNone);
    const KeptTensors kept = RequiredTensors(block);
    EXPECT_EQ(NaiveRuns(block, kept), 0);
    EXPECT_EQ(BytesOf(block, kept),
              none.act_storage_space - ShardBytes(execution));
    EXPECT_EQ(CostsWith(none, block, kept).recompute.time, 0);
  }
}

// Seconds of a layer's forward pass, without communication.
double ForwardTime(const Execution& execution, std::string_view name) {
  const LayerHardware hardware =
      HardwareOf(TestSystem(), execution, AllCorrections());
  const Block block = BuildBlock(TestModel(), execution, AllCorrections());
  const auto layer = std::ranges::find(block.layers(), name, &Layer::name);
  EXPECT_NE(layer, block.layers().end());
  return SumLayers({&*layer, 1}, hardware, true).forward.time;
}

void ExpectSameComm(const BlockCosts& ours, const BlockCosts& theirs) {
  EXPECT_NEAR(ours.repeated_comm.base_size, theirs.repeated_comm.base_size,
              1e-9 * theirs.repeated_comm.base_size);
  EXPECT_NEAR(ours.repeated_comm.base_exposed,
              theirs.repeated_comm.base_exposed,
              1e-9 * theirs.repeated_comm.base_exposed);
  EXPECT_NEAR(ours.repeated_comm.edge_exposed,
              theirs.repeated_comm.edge_exposed,
              1e-9 * theirs.repeated_comm.edge_exposed);
}

// Full runs the last sum of the block too, which nothing needs.
TEST(BlockOperators, FullRecomputationKeepsNothing) {
  for (const Execution& execution : AllKinds()) {
    const BlockOperators block =
        ListOperators(TestModel(), TestSystem(), execution);
    const BlockCosts ours =
        CostsWith(CostsOf(execution, Recompute::kNone), block, 0);
    const BlockCosts full = CostsOf(execution, Recompute::kFull);
    EXPECT_EQ(ours.act_storage_space, full.checkpoint_size);
    EXPECT_NEAR(
        ours.recompute.time,
        full.recompute.time - ForwardTime(execution, "MlpBlock_Residual"),
        1e-9 * full.recompute.time);
    ExpectSameComm(ours, full);
    // Of an input that it gathers again in tiles, full reads a tile.
    EXPECT_GE(ours.weight_grad.time, full.weight_grad.time * (1 - 1e-9));
    if (!execution.IsSequenceParallel() ||
        execution.tensor_par_overlap == TensorOverlap::kNone) {
      EXPECT_NEAR(ours.weight_grad.time, full.weight_grad.time,
                  1e-9 * full.weight_grad.time);
    }
  }
}

// attn_only runs the product with the values too, which is kept all the same.
TEST(BlockOperators, AttentionOnlyDropsTheScores) {
  for (const Execution& execution : AllKinds()) {
    const BlockOperators block =
        ListOperators(TestModel(), TestSystem(), execution);
    const bool is_overlapped =
        execution.tensor_par_overlap != TensorOverlap::kNone;
    KeptTensors kept = 0;
    int dropped = 0;
    for (size_t i = 0; i < block.tensors.size(); ++i) {
      const KeepableTensor& tensor = block.tensors[i];
      const std::string_view maker = block.operators[tensor.maker].name;
      const bool is_score = maker == "AttnBlock_Multihead_Key_Query" ||
                            maker == "AttnBlock_Multihead_SoftMax" ||
                            maker == "AttnBlock_Multihead_DropOut";
      dropped += is_score ? 1 : 0;
      if (is_score || (is_overlapped && !tensor.is_required)) continue;
      kept |= KeptTensors{1} << i;
    }
    EXPECT_EQ(dropped, 3);
    const BlockCosts ours =
        CostsWith(CostsOf(execution, Recompute::kNone), block, kept);
    const BlockCosts fixed = CostsOf(execution, Recompute::kAttentionOnly);
    EXPECT_EQ(ours.act_storage_space, fixed.act_storage_space);
    EXPECT_NEAR(ours.recompute.time,
                fixed.recompute.time -
                    ForwardTime(execution, "AttnBlock_Multihead_Attn"),
                1e-9 * fixed.recompute.time);
    ExpectSameComm(ours, fixed);
    EXPECT_NEAR(ours.weight_grad.time, fixed.weight_grad.time,
                1e-9 * fixed.weight_grad.time);
  }
}

TEST(BlockOperators, NamesSayWhatIsKept) {
  Execution execution{.tensor_par = 8,
                      .microbatch_size = 2,
                      .tensor_par_comm_type = TensorCommType::kScattered,
                      .tensor_par_overlap = TensorOverlap::kRing};
  const BlockOperators block =
      ListOperators(TestModel(), TestSystem(), execution);
  std::vector<std::string> names;
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    names.push_back(TensorName(block, static_cast<int>(i)));
  }
  for (const char* name :
       {"AttnBlock_QKV_AG gathered input", "AttnBlock_LayerNorm",
        "AttnBlock_Multihead_DropOut mask", "AttnBlock_Multihead_DropOut"}) {
    EXPECT_EQ(std::ranges::count(names, name), 1) << name;
  }
}

}  // namespace
}  // namespace acplan::costmodel
