#include "costmodel/planning/strategy_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "costmodel/llm/evaluation.h"
#include "costmodel/planning/plan_check.h"
#include "tests/costmodel/golden_data.h"
#include "tests/support/repetitions.h"

namespace acplan::costmodel {
namespace {

using test_support::Repetitions;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t Int(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  double Real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  bool OneIn(int64_t n) { return Int(1, n) == 1; }
  template <typename T>
  T Of(std::initializer_list<T> values) {
    return values.begin()[Int(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  std::mt19937 engine_;
};

struct Strategy {
  Model model;
  System system;
  Execution execution;

  Schedule Layout() const { return ScheduleOf(model, execution); }
};

Model RandomModel(Random& random) {
  const int64_t heads = random.Of<int64_t>({8, 16, 32});
  const int64_t size = random.Of<int64_t>({32, 64, 128});
  return {.hidden = heads * size,
          .feedforward = heads * size * random.Int(2, 5),
          .seq_size = random.Of<int64_t>({256, 1024, 2048, 4096}),
          .attn_heads = heads,
          .attn_size = random.OneIn(4) ? size / 2 : size,
          .num_blocks = random.Int(1, 8)};
}

Execution RandomExecution(const Model& model, Random& random) {
  Execution execution{
      .tensor_par = random.Of<int64_t>({1, 2, 4, 8}),
      .pipeline_par = random.Of<int64_t>({1, 2, 2, 3, 4, 4, 6}),
      .data_par = random.Of<int64_t>({1, 2, 4, 16}),
      .tensor_par_net = random.OneIn(4) ? 1 : 0,
      .pipeline_par_net = random.OneIn(3) ? 0 : 1,
      .data_par_net = random.OneIn(3) ? 0 : 1,
      .microbatch_size = random.Int(1, 3),
      .fused_activation = random.OneIn(2),
      .attention_type = random.OneIn(3) ? AttentionType::kMultiquery
                                        : AttentionType::kMultihead,
      .tensor_par_comm_type =
          random.Of({TensorCommType::kAllReduce, TensorCommType::kScatteredSend,
                     TensorCommType::kScattered, TensorCommType::kScattered})};
  execution.num_procs =
      execution.tensor_par * execution.pipeline_par * execution.data_par;
  execution.batch_size =
      execution.data_par * execution.microbatch_size * random.Int(1, 9);
  const int64_t blocks = BlocksPerProcessor(model, execution);
  if (execution.pipeline_par > 1 && random.OneIn(2)) {
    do {
      execution.pipeline_interleaving = random.Int(1, blocks);
    } while (blocks % execution.pipeline_interleaving != 0);
  }
  if (execution.tensor_par > 1) {
    execution.tensor_par_overlap = random.Of(
        {TensorOverlap::kNone, TensorOverlap::kRing, TensorOverlap::kPipe});
  }
  if (execution.data_par > 1) {
    execution.optimizer_sharding = random.OneIn(2);
    execution.data_par_overlap = !random.OneIn(3);
  }
  if (blocks > 2) {
    execution.weight_offload = random.OneIn(4);
    execution.activations_offload = random.OneIn(3);
    execution.optimizer_offload = random.OneIn(4);
  }
  return execution;
}

MemoryNeeds NeedsOf(const Strategy& strategy, int64_t stage,
                    const BlockCosts& costs, double bytes, double most) {
  const Schedule schedule = strategy.Layout();
  return ComputeStageMemoryNeeds(
      strategy.execution, StageBlocks(schedule, stage), costs,
      {StageMicrobatches(schedule, stage), bytes, most}, AllCorrections());
}

MemoryNeeds UniformNeeds(const Strategy& strategy, const BlockCosts& costs,
                         double bytes) {
  const double blocks = StageBlocks(strategy.Layout(), 0);
  return NeedsOf(strategy, 0, costs, blocks * bytes, bytes);
}

Strategy RandomStrategy(Random& random) {
  Strategy strategy;
  strategy.model = RandomModel(random);
  strategy.system = GoldenSystem(random.Of<std::string>(
      {"systems/a100_80g.json", "systems/a100_80e.json",
       "systems/h100_80g_nvl8.json", "systems/h200_141g_nvl8.json",
       "systems/b200_180g_nvl8.json", "systems/mi300x_192g.json"}));
  System& system = strategy.system;
  system.is_roofline = random.OneIn(3);
  for (Network& network : system.networks) {
    network.must_be_filled = false;
    network.size = 1 << 20;
    if (random.OneIn(2)) network.bandwidth *= random.Real(0.05, 1);
  }
  strategy.execution = RandomExecution(strategy.model, random);
  const PlannedBlock block =
      PlanBlock(strategy.model, system, strategy.execution);
  const MemoryNeeds least =
      UniformNeeds(strategy, block.costs, block.operators.input_bytes);
  const MemoryNeeds all = UniformNeeds(
      strategy, block.costs, KeptBytes(block.operators, ~KeptTensors{0}));
  system.mem1.capacity =
      std::lerp(least.tier1, all.tier1, random.Real(-0.05, 1.1));
  system.mem2.capacity = least.tier2 == 0 ? 0
                                          : std::lerp(least.tier2, all.tier2,
                                                      random.Real(-0.02, 1.3));
  return strategy;
}

// A set of tensors that a block keeps.
struct Option {
  double bytes = 0;
  double cost = 0;  // of a batch, without what later stages fill
  double fill = 0;
  double short_fill = 0;
  BlockCosts costs;
};

std::vector<Option> Undominated(std::vector<Option> options,
                                double Option::*cost) {
  std::ranges::sort(options, [&](const Option& a, const Option& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.*cost < b.*cost;
  });
  std::vector<Option> best;
  for (const Option& option : options) {
    if (best.empty() || option.*cost < best.back().*cost) {
      best.push_back(option);
    }
  }
  return best;
}

constexpr double kMostMixtures = 1500;
using Mixture = std::vector<BlockShare>;

// The least time of a batch, from all subsets of a block's tensors and all
// multisets of blocks.
class Oracle {
 public:
  explicit Oracle(const Strategy& strategy)
      : strategy_(strategy),
        schedule_(strategy.Layout()),
        block_(PlanBlock(strategy.model, strategy.system, strategy.execution)) {
    ListOptions();
  }

  // Infinite where nothing fits.
  double Least() {
    double later = 0;
    for (int64_t stage = 1; stage < strategy_.execution.pipeline_par; ++stage) {
      const double blocks = StageBlocks(schedule_, stage);
      if (blocks < 1) break;
      const auto fill = StageLacksBlock(schedule_, stage) ? &Option::short_fill
                                                          : &Option::fill;
      later += LeastOf(stage, Undominated(options_, fill),
                       [&](const Mixture&, const Option& sum) {
                         return sum.*fill / blocks;
                       });
    }
    return later + LeastOfFirst();
  }

  // Returns whether all plans can be enumerated, but for those of the first
  // stage where communication of gradients is overlapped.
  bool IsSmall() const {
    return Mixtures(Undominated(options_, &Option::cost)) <= kMostMixtures &&
           Mixtures(Undominated(options_, &Option::fill)) <= kMostMixtures &&
           Mixtures(Undominated(options_, &Option::short_fill)) <=
               kMostMixtures;
  }
  bool is_complete() const { return is_complete_; }

 private:
  BatchTimes TimesOf(const BlockCosts& costs) const {
    return ComputeBatchTimes(strategy_.system, strategy_.execution, schedule_,
                             costs, AllCorrections());
  }

  // That later stages take, were they like the first.
  double LaterFill(const Option& option) const {
    return schedule_.missing_blocks * option.short_fill +
           (schedule_.pipeline_par - 1 - schedule_.missing_blocks) *
               option.fill;
  }

  double Mixtures(const std::vector<Option>& options) const {
    double mixtures = 1;
    for (double i = 0; i < schedule_.blocks; ++i) {
      mixtures *= (static_cast<double>(options.size()) + i) / (i + 1);
    }
    return mixtures;
  }

  // Lists, of subsets that run the same again, the smallest.
  void ListOptions() {
    const BlockOperators& operators = block_.operators;
    std::map<std::vector<bool>, std::pair<double, KeptTensors>> smallest;
    for (KeptTensors kept = 0; kept <= AllTensors(operators); ++kept) {
      const std::pair<double, KeptTensors> here = {KeptBytes(operators, kept),
                                                   kept};
      const auto [at, is_new] =
          smallest.emplace(RunsAgain(operators, kept), here);
      if (!is_new) at->second = std::min(at->second, here);
    }
    for (const auto& [runs, best] : smallest) {
      Option option{.bytes = best.first,
                    .costs = CostsWith(block_.costs, operators, best.second)};
      const BatchTimes times = TimesOf(option.costs);
      option.fill = StageFillTime(schedule_, times, false);
      option.short_fill = StageFillTime(schedule_, times, true);
      option.cost =
          times.total - times.data_parallel.exposed - LaterFill(option);
      options_.push_back(option);
    }
  }

  // Over all multisets that fit.
  double LeastOf(int64_t stage, const std::vector<Option>& options,
                 const std::function<double(const Mixture&, const Option& sum)>&
                     cost) const {
    double least = kInfinity;
    Mixture mixture;
    const std::function<void(size_t, double, double, const Option&)> visit =
        [&](size_t first, double blocks, double most, const Option& sum) {
          if (blocks == 0) {
            const MemoryNeeds needs =
                NeedsOf(strategy_, stage, block_.costs, sum.bytes, most);
            if (!CheckMemory(strategy_.system, needs).Fits()) return;
            least = std::min(least, cost(mixture, sum));
            return;
          }
          for (size_t i = first; i < options.size(); ++i) {
            const Option& option = options[i];
            for (double count = 1; count <= blocks; ++count) {
              mixture.push_back({option.costs, count});
              visit(i + 1, blocks - count, std::max(most, option.bytes),
                    {.bytes = sum.bytes + count * option.bytes,
                     .cost = sum.cost + count * option.cost,
                     .fill = sum.fill + count * option.fill,
                     .short_fill = sum.short_fill + count * option.short_fill,
                     .costs = {}});
              mixture.pop_back();
            }
          }
        };
    visit(0, StageBlocks(schedule_, stage), 0, {});
    return least;
  }

  double LeastOfFirst() {
    const Execution& execution = strategy_.execution;
    if (!execution.data_par_overlap) {
      const double exposed = TimesOf(block_.costs).data_parallel.exposed;
      return LeastOf(0, Undominated(options_, &Option::cost),
                     [&](const Mixture&, const Option& sum) {
                       return sum.cost / schedule_.blocks + exposed;
                     });
    }
    // Recomputation hides communication, so that all subsets count.
    is_complete_ = Mixtures(options_) <= kMostMixtures;
    return LeastOf(
        0, is_complete_ ? options_ : Undominated(options_, &Option::cost),
        [&](const Mixture& mixture, const Option& sum) {
          const double total =
              ComputeBatchTimes(strategy_.system, execution, schedule_, mixture,
                                AllCorrections())
                  .total;
          return total - LaterFill(sum) / schedule_.blocks;
        });
  }

  const Strategy& strategy_;
  Schedule schedule_;
  PlannedBlock block_;
  std::vector<Option> options_;
  bool is_complete_ = true;
};

StrategyPlan PlanOf(const Strategy& strategy) {
  return PlanStrategy(strategy.model, strategy.system, strategy.execution);
}

std::string ErrorOf(const Strategy& strategy, const StrategyPlan& plan) {
  return FindPlanError(strategy.model, strategy.system, strategy.execution,
                       plan)
      .value_or("");
}

std::string Describe(const Execution& e) {
  std::string text =
      "policy " + std::to_string(static_cast<int>(e.activation_recompute));
  const auto add = [&](const char* name, int64_t value) {
    text += std::string(", ") + name + " " + std::to_string(value);
  };
  add("redo", e.seq_par_ag_redo ? 1 : 0);
  add("tp", e.tensor_par);
  add("pp", e.pipeline_par);
  add("dp", e.data_par);
  add("microbatches", e.NumMicrobatches());
  add("chunks", e.pipeline_interleaving);
  add("comm", static_cast<int64_t>(e.tensor_par_comm_type));
  add("overlap", static_cast<int64_t>(e.tensor_par_overlap));
  add("dp overlap", e.data_par_overlap);
  add("offloads", 100 * e.weight_offload + 10 * e.activations_offload +
                      e.optimizer_offload);
  return text;
}

// The policies of Calculon.
std::vector<Execution> FixedPolicies(Execution execution) {
  std::vector<Execution> fixed;
  for (const auto recompute :
       {Recompute::kNone, Recompute::kAttentionOnly, Recompute::kFull}) {
    for (const bool redo : {false, true}) {
      if (redo &&
          (recompute == Recompute::kFull || !execution.IsSequenceParallel())) {
        continue;
      }
      execution.activation_recompute = recompute;
      execution.seq_par_ag_redo = redo;
      fixed.push_back(execution);
    }
  }
  return fixed;
}

// Four seeds have together more than 500 strategies of which all plans can be
// enumerated; fewer under sanitizers, where each takes several times as long.
#ifdef __SANITIZE_ADDRESS__
constexpr int kStrategies = 100;
constexpr int kCompared = 30;
constexpr int kExposed = 20;
#else
constexpr int kStrategies = 350;
constexpr int kCompared = 125;
constexpr int kExposed = 100;
#endif
class StrategyPlanOfSeed : public testing::TestWithParam<uint32_t> {};

TEST_P(StrategyPlanOfSeed, IsTheLeastOfAllPlans) {
  Random random(GetParam());
  int feasible = 0;
  int optimal = 0;
  int compared = 0;
  int exposed = 0;
  for (int i = 0; i < kStrategies; ++i) {
    const Strategy strategy = RandomStrategy(random);
    SCOPED_TRACE(std::to_string(i) + ": " + Describe(strategy.execution));
    const StrategyPlan plan = PlanOf(strategy);
    EXPECT_EQ(ErrorOf(strategy, plan), "");
    Oracle oracle(strategy);
    if (!oracle.IsSmall()) continue;
    const double least = oracle.Least();
    EXPECT_EQ(plan.verdict.Fits(), least < kInfinity);
    if (!plan.verdict.Fits() || least == kInfinity) continue;
    ++feasible;
    EXPECT_LE(plan.bound, least * (1 + 1e-9));
    if (oracle.is_complete()) {
      ++compared;
      EXPECT_GE(plan.times.total, least * (1 - 1e-9));
    }
    if (plan.IsOptimal()) {
      ++optimal;
      EXPECT_LE(plan.times.total, least * (1 + 1e-9));
    }
    exposed += plan.times.data_parallel.exposed > 0 ? 1 : 0;
    const PlannedBlock block =
        PlanBlock(strategy.model, strategy.system, strategy.execution);
    EXPECT_LE(LeastBatchTime(strategy.system, strategy.execution,
                             strategy.Layout(), block.costs),
              std::min(least, plan.times.total) * (1 + 1e-9));
  }
  RecordProperty("feasible", feasible);
  RecordProperty("optimal", optimal);
  RecordProperty("compared", compared);
  EXPECT_GT(feasible, kStrategies / 2);
  EXPECT_GT(compared, kCompared);
  EXPECT_GT(optimal, feasible * 49 / 50);
  EXPECT_GT(exposed, kExposed);
}

INSTANTIATE_TEST_SUITE_P(Seeds, StrategyPlanOfSeed, testing::Range(11U, 15U));

// Whether a fixed policy loses nothing that its costs leave out: overlapped
// layers that gather their input again count a tile of it, as if that were all
// that the weight gradients read; without peers, what is gathered again is the
// shard that is not kept.
bool IsComparable(const Execution& fixed) {
  const bool gathers_again =
      fixed.IsSequenceParallel() &&
      (fixed.seq_par_ag_redo || fixed.activation_recompute == Recompute::kFull);
  if (gathers_again && fixed.tensor_par_overlap != TensorOverlap::kNone) {
    return false;
  }
  return !fixed.seq_par_ag_redo || fixed.tensor_par > 1;
}

TEST(StrategyPlan, IsNoSlowerThanFixedPolicies) {
  Random random(12);
  std::array<int, 3> fitting{};
  for (int i = 0; i < 4 * kStrategies; ++i) {
    const Strategy strategy = RandomStrategy(random);
    const StrategyPlan plan = PlanOf(strategy);
    for (const Execution& fixed : FixedPolicies(strategy.execution)) {
      SCOPED_TRACE(std::to_string(i) + ": " + Describe(fixed));
      const Evaluation evaluation =
          Evaluate(strategy.model, strategy.system, fixed, AllCorrections());
      if (!evaluation.verdict.Fits() || !IsComparable(fixed)) continue;
      ++fitting[static_cast<size_t>(fixed.activation_recompute)];
      EXPECT_TRUE(plan.verdict.Fits());
      EXPECT_LE(plan.times.total, evaluation.times.total * (1 + 1e-9));
    }
  }
  for (const int count : fitting) EXPECT_GT(count, 50);
}

// A budget of what a plan takes is enough for it, to the byte.
TEST(StrategyPlan, ItsOwnPeakIsEnough) {
  Random random(14);
  for (int i = 0; i < 2 * kStrategies; ++i) {
    Strategy strategy = RandomStrategy(random);
    SCOPED_TRACE(std::to_string(i) + ": " + Describe(strategy.execution));
    const StrategyPlan plan = PlanOf(strategy);
    strategy.system.mem1.capacity = strategy.system.mem2.capacity = 0;
    for (const StagePlan& stage : plan.stages) {
      System& system = strategy.system;
      system.mem1.capacity = std::max(system.mem1.capacity, stage.memory.tier1);
      system.mem2.capacity = std::max(system.mem2.capacity, stage.memory.tier2);
    }
    const StrategyPlan again = PlanOf(strategy);
    EXPECT_TRUE(again.verdict.Fits());
    EXPECT_LE(again.times.total, plan.times.total * (1 + 1e-9));
    EXPECT_EQ(ErrorOf(strategy, again), "");
  }
}

void ExpectEqualTimes(const BatchTimes& ours, const BatchTimes& theirs) {
  for (const auto member :
       {&BatchTimes::forward, &BatchTimes::backward, &BatchTimes::optimizer,
        &BatchTimes::recompute, &BatchTimes::forward_offload_exposed,
        &BatchTimes::backward_offload_exposed,
        &BatchTimes::repeated_comm_exposed, &BatchTimes::bubble,
        &BatchTimes::tensor_comm_exposed, &BatchTimes::pipeline_comm,
        &BatchTimes::total}) {
    EXPECT_NEAR(ours.*member, theirs.*member, 1e-9 * theirs.total);
  }
  EXPECT_NEAR(ours.data_parallel.exposed, theirs.data_parallel.exposed,
              1e-9 * theirs.total);
}

TEST(BatchTimes, BlocksThatCostTheSameAreAsOne) {
  Random random(13);
  for (int i = 0; i < Repetitions(300); ++i) {
    const Strategy strategy = RandomStrategy(random);
    const Schedule schedule = strategy.Layout();
    const PlannedBlock block =
        PlanBlock(strategy.model, strategy.system, strategy.execution);
    const BlockCosts& costs = block.policy_costs[random.Int(
        0, static_cast<int64_t>(block.policy_costs.size()) - 1)];
    const BatchTimes plain = ComputeBatchTimes(
        strategy.system, strategy.execution, schedule, costs, AllCorrections());
    const auto mixed = [&](const Mixture& shares) {
      return ComputeBatchTimes(strategy.system, strategy.execution, schedule,
                               shares, AllCorrections());
    };
    ExpectEqualTimes(mixed({{costs, schedule.blocks}}), plain);
    ExpectEqualTimes(mixed({{costs, schedule.blocks / 4},
                            {costs, schedule.blocks / 4},
                            {costs, schedule.blocks / 2}}),
                     plain);
  }
}

// Feasible, and with several policies in its first stage.
struct Case {
  Strategy strategy;
  StrategyPlan plan;
};

Case MixedCase() {
  Random random(14);
  for (;;) {
    const Strategy strategy = RandomStrategy(random);
    if (strategy.execution.pipeline_par < 2) continue;
    StrategyPlan plan = PlanOf(strategy);
    if (!plan.verdict.Fits() || plan.stages.size() < 2) continue;
    const StagePlan& first = plan.stages.front();
    if (first.policies.size() < 2 || first.recompute_seconds == 0) continue;
    if (first.policies.back().kept == 0) continue;
    return {strategy, plan};
  }
}

TEST(PlanCheck, FindsWhatIsWrong) {
  const Case sound = MixedCase();
  EXPECT_EQ(ErrorOf(sound.strategy, sound.plan), "");
  const auto error = [&](const std::function<void(StrategyPlan&)>& change) {
    StrategyPlan plan = sound.plan;
    change(plan);
    return ErrorOf(sound.strategy, plan);
  };
  const auto stage = [](StrategyPlan& plan) -> StagePlan& {
    return plan.stages.front();
  };
  EXPECT_NE(error([&](auto& plan) { ++stage(plan).policies[0].blocks; }), "");
  EXPECT_NE(error([&](auto& plan) { ++stage(plan).blocks; }), "");
  EXPECT_NE(error([&](auto& plan) {
              ++stage(plan).blocks;
              ++stage(plan).policies[0].blocks;
            }),
            "");
  EXPECT_NE(error([&](auto& plan) {
              ++stage(plan).policies[0].blocks;
              --stage(plan).policies[1].blocks;
            }),
            "");
  EXPECT_NE(error([](auto& plan) { plan.stages.pop_back(); }), "");
  EXPECT_NE(error([](auto& plan) { plan.stages.clear(); }), "");
  EXPECT_NE(error([&](auto& plan) { stage(plan).in_flight -= 0.5; }), "");
  EXPECT_NE(error([&](auto& plan) { stage(plan).memory.tier1 *= 1 - 1e-6; }),
            "");
  EXPECT_NE(error([&](auto& plan) { stage(plan).memory.tier2 += 1; }), "");
  // Every tensor counts.
  const KeptTensors kept = sound.plan.stages.front().policies.back().kept;
  for (int i = 0; i < 32; ++i) {
    EXPECT_NE(error([&](auto& plan) {
                stage(plan).policies.back().kept = kept ^ KeptTensors { 1 }
                                                              << i;
              }),
              "")
        << i;
  }
  EXPECT_NE(error([&](auto& plan) { stage(plan).seconds *= 1 - 1e-6; }), "");
  EXPECT_NE(error([&](auto& plan) { stage(plan).recompute_seconds = 0; }), "");
  EXPECT_NE(error([](auto& plan) { plan.times.total *= 1 - 1e-6; }), "");
  EXPECT_NE(error([](auto& plan) { plan.bound = plan.times.total * 1.01; }),
            "");
  EXPECT_NE(error([](auto& plan) { plan.verdict = {Rule::kMem1}; }), "");
  EXPECT_NE(error([](auto& plan) { plan.verdict = {Rule::kHeadsSplit}; }), "");

  Strategy smaller = sound.strategy;
  smaller.system.mem1.capacity =
      sound.plan.stages.front().memory.tier1 * (1 - 1e-6);
  EXPECT_NE(ErrorOf(smaller, sound.plan), "");
}

TEST(PlanCheck, APlanThatDoesNotFitMustKeepLeast) {
  Case sound = MixedCase();
  sound.strategy.system.mem1.capacity = 1;
  const StrategyPlan plan = PlanOf(sound.strategy);
  EXPECT_EQ(plan.verdict.rule, Rule::kMem1);
  EXPECT_EQ(ErrorOf(sound.strategy, plan), "");
  sound.plan.verdict = {Rule::kMem1};
  EXPECT_NE(ErrorOf(sound.strategy, sound.plan), "");
}

}  // namespace
}  // namespace acplan::costmodel
