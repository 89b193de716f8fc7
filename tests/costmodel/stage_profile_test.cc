#include "costmodel/profile/stage_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/records.h"
#include "costmodel/llm/schedule.h"
#include "costmodel/search/fixed_walk.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/golden_data.h"
#include "tests/support/repetitions.h"

namespace acplan::costmodel {
namespace {

using graph::Module;
using graph::Profile;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

const std::string kStage = "Transformer.stage";

const Module& Find(const Profile& profile, const std::string& fqn) {
  const auto at = std::ranges::find(profile.modules, fqn, &Module::fqn);
  if (at == profile.modules.end()) throw std::out_of_range(fqn);
  return *at;
}

const Module& Block(const Profile& profile, int64_t index,
                    const std::string& part = "") {
  return Find(profile, kStage + ".blocks." + std::to_string(index) + part);
}

double TotalMs(const graph::SacStatistics& sac) {
  return std::reduce(sac.runtimes.begin(), sac.runtimes.end());
}

// The largest record, and all that is in it.
int64_t Peak(const Profile& profile) {
  int64_t peak = 0;
  for (const Module& module : profile.modules) {
    peak = std::max(peak, (*module.snap->peak_bw)[graph::kTotal]);
  }
  return peak;
}

// Blocks of 1600 bytes of weights. A microbatch of a block keeps 1248 bytes:
// in attention its input 64, the norm 64, queries and keys 128, scores 64, masks
// 32 and 32, dropped scores 64, values 64 and the heads 64; in the MLP its input
// 64, the norm 64, and 256 on both sides of the activation, a mask of 32.
constexpr Model kSmall = {.hidden = 8,
                          .feedforward = 32,
                          .seq_size = 4,
                          .attn_heads = 2,
                          .attn_size = 4,
                          .num_blocks = 4};

Execution SmallExecution() {
  Execution execution;
  execution.num_procs = 2;
  execution.pipeline_par = 2;
  execution.pipeline_par_net = 1;
  execution.batch_size = 8;
  return execution;
}

const System& TestSystem() { return GoldenSystem("systems/a100_80g.json"); }

Profile SmallProfile(int64_t stage,
                     const Execution& execution = SmallExecution()) {
  return StageProfile(kSmall, TestSystem(), execution, AllCorrections(), stage);
}

TEST(StageProfile, SmallModelByHand) {
  const Profile profile = SmallProfile(0);
  const Module& stage = Find(profile, kStage);
  EXPECT_EQ(stage.param_per_module, 3200);
  EXPECT_EQ(stage.grad_per_module, 6400);
  EXPECT_EQ(profile.measured.optimizer_bytes, 19200);
  EXPECT_EQ(stage.act_total, 4 * 1248);  // 2 blocks, 2 microbatches
  // Units of the last block do without one microbatch, not two.
  EXPECT_EQ(Block(profile, 0).act_fw_per_module, 2 * (1248 - 64));
  EXPECT_EQ(Block(profile, 1).act_fw_per_module, 1248 - 64);
  EXPECT_EQ(stage.act_fw_per_module, 3 * (1248 - 64) + 2 * 64);
  EXPECT_EQ(Block(profile, 1, ".attention").act_fw_per_module, 512);
  EXPECT_EQ(Block(profile, 1, ".attention.core").act_fw_per_module, 160);
  EXPECT_EQ(Block(profile, 1, ".mlp").act_fw_per_module, 608);
  EXPECT_EQ(Block(profile, 1, ".mlp.MlpBlock_DropOut").act_fw_per_module, 32);
}

TEST(StageProfile, OperatorsOfTheSmallModel) {
  const Profile profile = SmallProfile(0);
  const graph::SacStatistics& attention = *Block(profile, 1, ".attention").sac;
  EXPECT_THAT(
      attention.func_names,
      ElementsAre("AttnBlock_Fork", "AttnBlock_LayerNorm", "AttnBlock_F",
                  "AttnBlock_Multihead_Fork", "AttnBlock_Query",
                  "AttnBlock_Key", "AttnBlock_Value",
                  "AttnBlock_Multihead_Key_Query",
                  "AttnBlock_Multihead_SoftMax", "AttnBlock_Multihead_DropOut",
                  "AttnBlock_Multihead_Attn", "AttnBlock_MLP", "AttnBlock_G",
                  "AttnBlock_DropOut", "AttnBlock_Residual"));
  EXPECT_THAT(attention.memory, ElementsAre(0, 64, 0, 0, 64, 64, 64, 64, 64, 96,
                                            64, 64, 0, 96, 0));
  EXPECT_THAT(attention.view_like_ops, ElementsAre(0, 2, 3, 12));
  EXPECT_THAT(attention.rand_ops, ElementsAre(9, 13));
  EXPECT_THAT(attention.saved_autograd_ops,
              ElementsAre(2, 4, 5, 6, 7, 9, 10, 13, 14));
  EXPECT_THAT(attention.inplace_ops, IsEmpty());
  EXPECT_FALSE(attention.force_store_random);
  EXPECT_THAT(Block(profile, 1, ".attention.core").sac->memory,
              ElementsAre(64, 64, 96, 0));
  EXPECT_THAT(Block(profile, 1, ".mlp").sac->memory,
              ElementsAre(0, 64, 0, 256, 256, 64, 0, 96, 0));
  // Within its block the result of attention can be saved.
  EXPECT_EQ(Block(profile, 1).sac->memory[14], 64);
  EXPECT_EQ(Block(profile, 0).sac->memory[14], 128);
  EXPECT_EQ(Find(profile, kStage).sac->memory[23], 128);
  EXPECT_TRUE(Block(profile, 0, ".mlp.MlpBlock_Mlp1").is_leaf);
}

TEST(StageProfile, LaterStagesHoldLess) {
  const Profile first = SmallProfile(0);
  const Profile last = SmallProfile(1);
  EXPECT_EQ(Find(last, kStage).act_total, 2 * 1248);
  EXPECT_EQ(Block(last, 0).act_fw_per_module, 1248 - 64);
  EXPECT_EQ(Block(last, 1).act_fw_per_module, 0);
  EXPECT_EQ(Peak(first) - Peak(last), 2 * 1248);
  EXPECT_EQ(Find(first, kStage).fw_runtime_per_module,
            Find(last, kStage).fw_runtime_per_module);
}

TEST(StageProfile, AllReducesAndFusedActivationsAreInPlace) {
  Execution execution = SmallExecution();
  execution.num_procs = 4;
  execution.tensor_par = 2;
  execution.fused_activation = true;
  const Profile profile = SmallProfile(0, execution);
  EXPECT_THAT(Block(profile, 0, ".attention").sac->inplace_ops,
              ElementsAre(Pair(12, 11)));
  const graph::SacStatistics& mlp = *Block(profile, 0, ".mlp").sac;
  EXPECT_THAT(mlp.inplace_ops, ElementsAre(Pair(4, 3), Pair(6, 5)));
  EXPECT_THAT(mlp.memory, ElementsAre(0, 128, 0, 256, 0, 128, 0, 192, 0));
}

TEST(StageProfile, ScatteredCommunicationMakesWhatItMoves) {
  Execution execution = SmallExecution();
  execution.num_procs = 4;
  execution.tensor_par = 2;
  execution.tensor_par_comm_type = TensorCommType::kScattered;
  const Profile profile = SmallProfile(0, execution);
  // The shard of the norm, the whole gathered; a whole sum, its shard.
  EXPECT_THAT(Block(profile, 1, ".mlp").sac->memory,
              ElementsAre(0, 32, 64, 128, 128, 64, 32, 48, 0));
  execution.tensor_par_overlap = TensorOverlap::kRing;
  const Profile overlapped = SmallProfile(0, execution);
  // What an overlapped layer gathers it keeps, with its result.
  EXPECT_THAT(Block(overlapped, 1, ".mlp").sac->memory,
              ElementsAre(0, 32, 128 + 64, 128, 32, 48, 0));
  EXPECT_EQ(Block(overlapped, 1, ".mlp.MlpBlock_Mlp1_AG").act_fw_per_module,
            64);
}

TEST(StageProfile, OffloadedStateKeepsTwoBlocks) {
  Execution execution = SmallExecution();
  execution.pipeline_par = execution.num_procs = 1;
  execution.weight_offload = true;
  execution.optimizer_offload = true;
  execution.activations_offload = true;
  const Profile profile = SmallProfile(0, execution);
  EXPECT_EQ(profile.measured.param_bytes, 2 * 1600);
  EXPECT_EQ(profile.measured.grad_bytes, 2 * 3200);
  EXPECT_EQ(profile.measured.optimizer_bytes, 2 * 9600);
  EXPECT_EQ(Find(profile, kStage).act_total, 2 * 1248);
  EXPECT_EQ(Block(profile, 1).act_fw_per_module, 0);
  EXPECT_EQ(Block(profile, 1).param_per_module, 0);
  EXPECT_EQ(Block(profile, 2).act_fw_per_module, 1248 - 64);
  EXPECT_EQ(Block(profile, 3).param_per_module, 1600);
}

TEST(StageProfile, RefusesWhatAProfileCannotHold) {
  const auto refusal = [](const Model& model) -> std::string {
    Execution execution;
    try {
      StageProfile(model, TestSystem(), execution, AllCorrections(), 0);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  Model deep = kSmall;
  deep.num_blocks = 5000;
  EXPECT_THAT(refusal(deep), HasSubstr("at most 4096 blocks a stage"));
  Model wide = kSmall;
  wide.seq_size = 2000000000;
  EXPECT_THAT(refusal(wide), HasSubstr("at most 2^53 bytes"));
}

struct Case {
  std::string name;
  Model model;
  Execution execution;
};

// Table 5, and every 4999th strategy of a search.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const std::string model :
       {"megatron-22B", "gpt3-175B", "turing-530B", "megatron-1T"}) {
    for (const std::string strategy : {"full", "seqsel"}) {
      const std::string name = model + "_" + strategy;
      cases.push_back({name, GoldenModel("models/" + model + ".json"),
                       ReadExecution(GoldenInput("validation/seqsel/tab5/" +
                                                 name + ".json"))});
    }
  }
  SearchProblem problem;
  problem.model = GoldenModel("models/megatron-22B.json");
  problem.system = TestSystem();
  problem.system.mem1.capacity = problem.system.mem2.capacity = 1e18;
  problem.num_procs = 32;
  problem.max_batch = 32;
  int64_t count = 0;
  for (const SearchUnit& unit : SearchUnits(problem)) {
    FixedWalk walk(problem, unit);
    for (const SearchVariant& variant : SearchVariants(problem, unit)) {
      walk.Run(variant, {},
               [&](const Execution& execution, int64_t, const MemoryNeeds&,
                   const BatchTimes&, const BlockCosts&) {
                 if (++count % 4999 == 0) {
                   cases.push_back(
                       {ToJson(execution).dump(), problem.model, execution});
                 }
               });
    }
  }
  return cases;
}

Execution With(Execution execution, Recompute recompute) {
  execution.activation_recompute = recompute;
  execution.seq_par_ag_redo = false;
  return execution;
}

// Where a batch has not many more microbatches than the pipeline has stages, the
// cost model counts more in interleaved chunks than there are.
bool CountsMoreThanThereIs(const Execution& execution) {
  const int64_t chunks = execution.pipeline_interleaving;
  return chunks > 1 && execution.NumMicrobatches() * chunks <
                           execution.pipeline_par * (chunks + 1) - 1;
}

double NeededOf(const Case& one, Recompute recompute,
                const Corrections& corrections) {
  const Execution execution = With(one.execution, recompute);
  return ComputeMemoryNeeds(
             execution, ScheduleOf(one.model, execution),
             ComputeBlockCosts(one.model, TestSystem(), execution, corrections),
             corrections)
      .tier1;
}

TEST(StageProfile, ThePeakIsTheCostModelsMemory) {
  const std::vector<Case> cases = Cases();
  ASSERT_GT(cases.size(), 100);
  int compared = 0;
  for (const bool is_corrected : {true, false}) {
    const Corrections corrections =
        is_corrected ? AllCorrections() : Corrections();
    for (const Case& one : cases) {
      if (CountsMoreThanThereIs(one.execution)) continue;
      const Profile profile =
          StageProfile(one.model, TestSystem(), one.execution, corrections, 0);
      EXPECT_NEAR(static_cast<double>(Peak(profile)),
                  NeededOf(one, Recompute::kNone, corrections), 3)
          << one.name;
      EXPECT_EQ(profile.measured.peak_bytes, Peak(profile));
      ++compared;
    }
  }
  EXPECT_GT(compared, 150);
}

TEST(StageProfile, TimesAreSumsOfBlocks) {
  for (const Case& one : Cases()) {
    const Execution execution = With(one.execution, Recompute::kNone);
    const BlockCosts block =
        ComputeBlockCosts(one.model, TestSystem(), execution, AllCorrections());
    const Schedule schedule = ScheduleOf(one.model, execution);
    const Profile profile = StageProfile(one.model, TestSystem(), one.execution,
                                         AllCorrections(), 0);
    const double edge_blocks = schedule.chunks;
    const double base_blocks = schedule.blocks - edge_blocks;
    const auto ms = [&](double time, const StageComm& comm) {
      return 1000 * schedule.microbatches *
             (schedule.blocks * time + base_blocks * comm.base_exposed +
              edge_blocks * comm.edge_exposed);
    };
    const double forward = ms(block.forward.time, block.forward_comm);
    const double backward =
        ms(block.activation_grad.time + block.weight_grad.time,
           block.backward_comm);
    const Module& root = profile.modules.front();
    EXPECT_NEAR(root.fw_runtime_per_module, forward, 1e-9 * forward)
        << one.name;
    EXPECT_NEAR(root.bw_runtime_per_module, backward, 1e-9 * backward);
    EXPECT_NEAR(TotalMs(*root.sac), forward, 1e-9 * forward);
  }
}

// Calculon's "full" recomputes blocks whole, "attn_only" the core of attention:
// as units they leave what the cost model says, but that it counts a checkpoint
// of the block that runs twice. Overlapped layers keep less where they gather
// again, which changes the working space.
TEST(StageProfile, UnitsLeaveWhatTheCostModelSays) {
  int compared = 0;
  for (const Case& one : Cases()) {
    if (CountsMoreThanThereIs(one.execution) ||
        one.execution.activations_offload ||
        one.execution.tensor_par_overlap != TensorOverlap::kNone) {
      continue;
    }
    const Profile profile = StageProfile(one.model, TestSystem(), one.execution,
                                         AllCorrections(), 0);
    const int64_t blocks = BlocksPerProcessor(one.model, one.execution);
    int64_t by_blocks = Peak(profile);
    int64_t by_cores = by_blocks;
    for (int64_t i = 0; i < blocks; ++i) {
      by_blocks -= Block(profile, i).act_fw_per_module;
      by_cores -= Block(profile, i, ".attention.core").act_fw_per_module;
    }
    const double checkpoint =
        ComputeBlockCosts(one.model, TestSystem(),
                          With(one.execution, Recompute::kFull),
                          AllCorrections())
            .checkpoint_size;
    const double rounding = 16 * static_cast<double>(blocks);
    EXPECT_NEAR(static_cast<double>(by_blocks) + checkpoint,
                NeededOf(one, Recompute::kFull, AllCorrections()), rounding)
        << one.name;
    EXPECT_NEAR(static_cast<double>(by_cores),
                NeededOf(one, Recompute::kAttentionOnly, AllCorrections()),
                rounding)
        << one.name;
    ++compared;
  }
  EXPECT_GT(compared, 8);
}

// What runs again, all of it: of a block where nothing is communicated, and of
// the core of attention.
TEST(StageProfile, RecomputationTakesWhatTheCostModelSays) {
  for (const Case& one : Cases()) {
    const Profile profile = StageProfile(one.model, TestSystem(), one.execution,
                                         AllCorrections(), 0);
    const auto recompute_ms = [&](Recompute recompute) {
      return 1000 * static_cast<double>(one.execution.NumMicrobatches()) *
             ComputeBlockCosts(one.model, TestSystem(),
                               With(one.execution, recompute), AllCorrections())
                 .recompute.time;
    };
    const double core = recompute_ms(Recompute::kAttentionOnly);
    EXPECT_NEAR(TotalMs(*Block(profile, 0, ".attention.core").sac), core,
                1e-9 * core)
        << one.name;
    if (one.execution.tensor_par > 1) continue;
    const double full = recompute_ms(Recompute::kFull);
    EXPECT_NEAR(TotalMs(*Block(profile, 0).sac), full, 1e-9 * full);
  }
}

TEST(StageProfile, OperatorsMakeWhatAutogradKeeps) {
  for (const Case& one : Cases()) {
    if (one.execution.attention_type != AttentionType::kMultihead) continue;
    const Profile profile = StageProfile(one.model, TestSystem(), one.execution,
                                         AllCorrections(), 0);
    for (const Module& module : profile.modules) {
      if (module.is_leaf) continue;
      EXPECT_LE(
          module.act_fw_per_module,
          std::reduce(module.sac->memory.begin(), module.sac->memory.end()))
          << one.name << " " << module.fqn;
    }
  }
}

TEST(StageProfile, IgnoresTheStrategysRecomputation) {
  Execution execution = SmallExecution();
  execution.num_procs = 4;
  execution.tensor_par = 2;
  execution.tensor_par_comm_type = TensorCommType::kScattered;
  const Profile none = SmallProfile(0, execution);
  execution.activation_recompute = Recompute::kAttentionOnly;
  execution.seq_par_ag_redo = true;
  EXPECT_EQ(SmallProfile(0, execution), none);
}

TEST(StageProfile, IsAValidProfile) {
  const std::vector<Case> cases = Cases();
  for (size_t i = 0; i < cases.size(); i += test_support::kEvery) {
    const Case& one = cases[i];
    for (const int64_t stage :
         {int64_t{0}, StagesWithBlocks(one.model, one.execution) - 1}) {
      const Profile profile = StageProfile(
          one.model, TestSystem(), one.execution, AllCorrections(), stage);
      EXPECT_EQ(graph::ParseProfile(graph::ProfileToJson(profile), one.name),
                profile);
    }
  }
}

}  // namespace
}  // namespace acplan::costmodel
