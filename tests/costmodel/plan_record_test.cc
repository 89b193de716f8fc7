#include "costmodel/planning/plan_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "costmodel/llm/evaluation.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/golden_data.h"

namespace acplan::costmodel {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr double kGiB = 1024. * 1024 * 1024;

const Model& TestModel() { return GoldenModel("models/megatron-22B.json"); }

System SystemOf(double gib) {
  System system = GoldenSystem("systems/a100_80g.json");
  system.mem1.capacity = gib * kGiB;
  return system;
}

// Four stages of twelve blocks.
Execution TestExecution() {
  Execution execution;
  execution.num_procs = 8;
  execution.tensor_par = 2;
  execution.pipeline_par = 4;
  execution.batch_size = 8;
  execution.tensor_par_comm_type = TensorCommType::kScattered;
  return execution;
}

PlanRecord RecordAt(double gib, const Execution& execution = TestExecution()) {
  const System system = SystemOf(gib);
  PlanRecord record = RecordPlan(TestModel(), system, execution,
                                 PlanStrategy(TestModel(), system, execution));
  record.application = "megatron-22B";
  record.system = "a100_80g";
  return record;
}

double Most(const PlanRecord& record) {
  double most = 0;
  for (const StageRecord& stage : record.stages) {
    most = std::max(most, stage.memory.tier1);
  }
  return most;
}

// A budget at which the first stage must recompute some, but not all.
double TightGib() {
  const double least = Most(RecordAt(1)) / kGiB;
  const double all = Most(RecordAt(10'000)) / kGiB;
  return (least + all) / 2;
}

void ExpectSame(const PlanRecord& read, const PlanRecord& written) {
  EXPECT_EQ(read.application, written.application);
  EXPECT_EQ(read.system, written.system);
  EXPECT_EQ(read.is_corrected, written.is_corrected);
  EXPECT_EQ(read.execution, written.execution);
  EXPECT_EQ(read.status, written.status);
  EXPECT_EQ(read.budget_bytes, written.budget_bytes);
  EXPECT_EQ(read.tier2_bytes, written.tier2_bytes);
  EXPECT_EQ(read.times.total, written.times.total);
  EXPECT_EQ(read.times.bubble, written.times.bubble);
  EXPECT_EQ(read.times.recompute, written.times.recompute);
  EXPECT_EQ(read.bound, written.bound);
  EXPECT_EQ(read.stages, written.stages);
  EXPECT_EQ(read.fixed, written.fixed);
}

std::vector<PlanRecord> ManyRecords() {
  Execution interleaved = TestExecution();
  interleaved.pipeline_interleaving = 3;
  interleaved.tensor_par_overlap = TensorOverlap::kRing;
  Execution offloading = TestExecution();
  offloading.weight_offload = true;
  offloading.activations_offload = true;
  offloading.optimizer_offload = true;
  Execution overlapping = interleaved;
  overlapping.num_procs = 16;
  overlapping.data_par = 2;
  overlapping.data_par_net = 1;
  overlapping.batch_size = 16;
  overlapping.data_par_overlap = true;
  overlapping.optimizer_sharding = true;
  Execution reduced = TestExecution();
  reduced.tensor_par_comm_type = TensorCommType::kAllReduce;
  std::vector<PlanRecord> records;
  for (const Execution& execution :
       {TestExecution(), interleaved, offloading, overlapping, reduced}) {
    for (const double gib : {1., TightGib(), 10'000.}) {
      records.push_back(RecordAt(gib, execution));
      records.push_back(
          RecordFixedChoice(TestModel(), SystemOf(gib), execution));
    }
  }
  return records;
}

TEST(PlanRecord, ComesBackFromItsFile) {
  for (const PlanRecord& record : ManyRecords()) {
    const std::string text = ToJson(record).dump(2);
    const PlanRecord read = ParsePlanRecord(text, "plan.json");
    ExpectSame(read, record);
    EXPECT_EQ(ToJson(read).dump(2), text);
  }
}

TEST(PlanRecord, MemoryIsTheSumOfItsKinds) {
  for (const PlanRecord& record : ManyRecords()) {
    std::vector<MemoryParts> all;
    for (const StageRecord& stage : record.stages) all.push_back(stage.memory);
    for (const FixedPolicy& fixed : record.fixed) all.push_back(fixed.memory);
    for (const MemoryParts& memory : all) {
      EXPECT_NEAR(memory.weights + memory.activations +
                      memory.activation_gradients + memory.weight_gradients +
                      memory.optimizer,
                  memory.tier1, 1e-9 * memory.tier1);
    }
  }
}

TEST(PlanRecord, FixedPoliciesAreTheCostModels) {
  const double gib = TightGib();
  const PlanRecord record = RecordAt(gib);
  // none and attn_only, each with and without gathering again, and full.
  ASSERT_EQ(record.fixed.size(), 5);
  for (const FixedPolicy& fixed : record.fixed) {
    Execution execution = TestExecution();
    execution.activation_recompute = fixed.recompute;
    execution.seq_par_ag_redo = fixed.seq_par_ag_redo;
    const Evaluation roomy =
        Evaluate(TestModel(), SystemOf(10'000), execution, AllCorrections());
    EXPECT_EQ(fixed.total_time, roomy.times.total);
    EXPECT_EQ(fixed.memory.tier1, roomy.memory.tier1);
    EXPECT_EQ(fixed.fits,
              Evaluate(TestModel(), SystemOf(gib), execution, AllCorrections())
                  .verdict.Fits());
  }
}

// No fixed policy that fits is faster than an optimal plan, which at this
// budget recomputes in the first stage and not in the last.
TEST(PlanRecord, APlanIsNoSlowerThanAFixedPolicy) {
  const PlanRecord record = RecordAt(TightGib());
  EXPECT_EQ(record.status, PlanStatus::kOptimal);
  const auto best = FastestThatFits(record.fixed);
  ASSERT_TRUE(best);
  EXPECT_LT(record.times.total, best->total_time);
  ASSERT_EQ(record.stages.size(), 4);
  EXPECT_GT(record.stages.front().recompute_seconds, 0);
  EXPECT_EQ(record.stages.back().recompute_seconds, 0);
  EXPECT_LE(Most(record), record.budget_bytes);
}

TEST(PlanRecord, NamesWhatIsKeptAndWhatRunsAgain) {
  const PlanRecord roomy = RecordAt(10'000);
  for (const StageRecord& stage : roomy.stages) {
    ASSERT_EQ(stage.policies.size(), 1);
    EXPECT_THAT(stage.policies[0].recomputed, IsEmpty());
    EXPECT_THAT(stage.policies[0].kept, Contains("AttnBlock_Query"));
    EXPECT_EQ(stage.policies[0].blocks, 12);
  }
  const PolicyRecord least = RecordAt(1).stages[0].policies[0];
  EXPECT_THAT(least.kept, IsEmpty());
  EXPECT_THAT(least.recomputed, Contains("AttnBlock_Query"));
  EXPECT_THAT(least.recomputed, Not(Contains(HasSubstr("Fork"))));
}

TEST(PlanRecord, InfeasibleTellsTheLeast) {
  const PlanRecord record = RecordAt(1);
  EXPECT_EQ(record.status, PlanStatus::kInfeasible);
  const ordered_json file = ToJson(record);
  for (const char* key : {"total_time", "bound", "sample_rate", "times"}) {
    EXPECT_TRUE(file.at(key).is_null()) << key;
  }
  ASSERT_EQ(record.stages.size(), 4);
  // With a byte more than that, there is a plan; below it, none.
  const double least = Most(record);
  EXPECT_NE(RecordAt((least + 1) / kGiB).status, PlanStatus::kInfeasible);
  EXPECT_EQ(RecordAt((least - 1) / kGiB).status, PlanStatus::kInfeasible);
}

TEST(PlanRecord, WithoutCorrectionsItIsTheFastestFixedPolicy) {
  const PlanRecord record =
      RecordFixedChoice(TestModel(), SystemOf(10'000), TestExecution());
  EXPECT_EQ(record.status, PlanStatus::kFeasible);
  EXPECT_FALSE(record.bound);
  EXPECT_THAT(record.stages, IsEmpty());
  for (const FixedPolicy& fixed : record.fixed) {
    EXPECT_LE(record.times.total, fixed.total_time);
    EXPECT_EQ(fixed.total_time, Evaluate(TestModel(), SystemOf(10'000),
                                         WithPolicy(TestExecution(), fixed))
                                    .times.total);
  }
  EXPECT_EQ(RecordFixedChoice(TestModel(), SystemOf(1), TestExecution()).status,
            PlanStatus::kInfeasible);
}

TEST(PlanRecord, AllReduceHasNothingToGatherAgain) {
  Execution execution = TestExecution();
  execution.tensor_par_comm_type = TensorCommType::kAllReduce;
  EXPECT_EQ(RecordAt(10'000, execution).fixed.size(), 3);
}

// A change of a sound file, and what the complaint must say. "" removes the
// key.
struct WrongValue {
  std::string pointer;
  std::string value;
  std::string said;
};

void ExpectRefused(const PlanRecord& record,
                   const std::vector<WrongValue>& table) {
  const json sound = json::parse(ToJson(record).dump());
  for (const WrongValue& wrong : table) {
    json changed = sound;
    const json::json_pointer pointer(wrong.pointer);
    if (wrong.value.empty()) {
      changed.at(pointer.parent_pointer()).erase(pointer.back());
    } else {
      changed[pointer] = json::parse(wrong.value);
    }
    try {
      ParsePlanRecord(changed.dump(), "plan.json");
      ADD_FAILURE() << wrong.pointer << " = " << wrong.value;
    } catch (const InputError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(StartsWith("plan.json: "), HasSubstr(wrong.said),
                        HasSubstr("expected"), Not(HasSubstr("\n"))))
          << wrong.pointer << " = " << wrong.value;
    }
  }
}

TEST(PlanRecord, RefusesWhatIsMissing) {
  const PlanRecord record = RecordAt(TightGib());
  const json sound = json::parse(ToJson(record).dump());
  std::vector<WrongValue> table;
  const auto add = [&](const std::string& object) {
    const json& at = sound.at(json::json_pointer(object));
    for (const auto& [key, unused] : at.items()) {
      table.push_back({object + "/" + key, "", "the key \"" + key + "\""});
    }
  };
  for (const char* object :
       {"", "/execution", "/times", "/stages/0", "/stages/0/memory",
        "/stages/0/policies/0", "/fixed/0", "/fixed/0/memory"}) {
    add(object);
  }
  EXPECT_GT(table.size(), 70);
  ExpectRefused(record, table);
}

TEST(PlanRecord, RefusesWhatContradicts) {
  ExpectRefused(
      RecordAt(TightGib()),
      {
          {"/format", "\"acplan.plan\"", "\"acplan.llm_plan\""},
          {"/version", "2", "version: expected 1, found 2"},
          {"/application", "5", "application: expected a string"},
          {"/mode", "\"exact\"", "mode: expected calculon, corrected"},
          {"/mode", "\"calculon\"", "bound: expected null in mode calculon"},
          {"/execution/tensor_par", "3", "execution.num_procs: expected"},
          {"/execution/zero", "3", "execution.zero: expected none but"},
          {"/execution/training", "false", "execution.training: expected true"},
          {"/execution/batch_size", "16", "sample_rate: expected batch_size"},
          {"/status", "\"good\"", "status: expected optimal, feasible"},
          {"/status", "\"feasible\"", "status: expected optimal by bound"},
          {"/status", "\"infeasible\"", "total_time: expected null"},
          {"/budget_bytes", "0", "budget_bytes: expected a number above 0"},
          {"/budget_bytes", "1e9", "stages[0].memory: expected at most"},
          {"/tier2_bytes", "-1", "tier2_bytes: expected a number, 0 to"},
          {"/total_time", "1e-3", "total_time: expected the sum of its kinds"},
          {"/total_time", "null", "total_time: expected a number"},
          {"/times/bw_time", "\"1\"", "times.bw_time: expected a number"},
          {"/bound", "1e9", "bound: expected at most total_time"},
          {"/bound", "1e-3", "status: expected feasible by bound"},
          {"/sample_rate", "1e-3", "sample_rate: expected batch_size"},
          {"/stages", "[]", "stages: expected 1 to 4 stages"},
          {"/stages", "{}", "stages: expected an array"},
          {"/stages/1/stage", "2", "stages[1].stage: expected 1, found 2"},
          {"/stages/0/blocks", "13", "stages[0].blocks: expected the sum"},
          {"/stages/0/microbatches_in_flight", "0", "expected a number above"},
          {"/stages/0/memory/tier1", "5", "memory.tier1: expected the sum"},
          {"/stages/0/memory/weights", "-5", "memory.weights: expected"},
          {"/stages/0/seconds", "-1", "stages[0].seconds: expected"},
          {"/stages/0/recompute_seconds", "1e9", "expected at most seconds"},
          {"/stages/0/policies/0/blocks", "0", "policies[0].blocks: expected"},
          {"/stages/0/policies/0/kept", "[1]", "kept[0]: expected a string"},
          {"/stages/0/policies/0/recomputed", "3", "expected an array"},
          {"/fixed/0/policy", "\"some\"", "none, attn_only, full"},
          {"/fixed/1/seq_par_ag_redo", "false", "expected every policy once"},
          {"/fixed/4/seq_par_ag_redo", "true", "the execution may have"},
          {"/fixed/0/fits", "true", "fixed[0].fits: expected false by its"},
          {"/fixed/4/total_time", "null", "fixed[4].total_time: expected"},
      });
}

TEST(PlanRecord, RefusesContradictionsOfOtherModesAndAnswers) {
  const PlanRecord calculon =
      RecordFixedChoice(TestModel(), SystemOf(10'000), TestExecution());
  ExpectRefused(calculon,
                {{"/status", "\"optimal\"", "feasible or infeasible in mode"},
                 {"/fixed/0/total_time", "1e-3", "total_time: expected that"},
                 {"/fixed", "[]", "status: expected infeasible by its fixed"},
                 {"/stages", "[{}]", "expected the key"}});
  ExpectRefused(RecordAt(1), {{"/bound", "1", "bound: expected null where"},
                              {"/times", "{}", "times: expected null where"}});
}

TEST(PlanRecord, RefusesWhatIsNoJson) {
  for (const char* text : {"", "{", "[]", "5", "{\"format\": 1}"}) {
    EXPECT_THROW(ParsePlanRecord(text, "plan.json"), InputError) << text;
  }
}

}  // namespace
}  // namespace acplan::costmodel
