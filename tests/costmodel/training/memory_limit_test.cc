#include "costmodel/training/memory/memory_limit.h"

#include <gtest/gtest.h>

#include <string>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/score/memory_table.h"
#include "costmodel/training/score/run_table.h"
#include "costmodel/training/search/strategy_search.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

constexpr double kGiBytes = 1024.0 * 1024 * 1024;

const graph::DeviceTable& Devices() {
  static const graph::DeviceTable kDevices =
      graph::ReadDeviceTable(ACPLAN_DATA_DIR "/devices/memory.csv");
  return kDevices;
}

const TrainingSystems& Offered() {
  static const TrainingSystems kSystems = WithOffers(
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json"), Devices());
  return kSystems;
}

graph::CsvTable Table(const std::string& name) {
  const std::string path = ACPLAN_DATA_DIR "/training/" + name;
  return graph::ParseCsv(graph::ReadFile(path), path);
}

TrainingJob OfferedLlama() {
  TrainingJob job = Llama8B();
  job.cluster.gpu = FindAccelerator(Offered(), "H100-SXM5");
  return job;
}

double PyTorchBytesOf(const TrainingJob& job) {
  return PyTorchBytes(LimitOfGpu(job.cluster.gpu), job);
}

// Every GPU of the cost model is in the table of devices, under a name or an alias. ECC
// takes a sixteenth of GDDR memory.
TEST(MemoryLimit, KnowsEachGpuOfTheModel) {
  for (const Accelerator& gpu : Offered().accelerators) {
    ASSERT_TRUE(gpu.offer.has_value());
    EXPECT_NE(gpu.offer->architecture, "") << gpu.name;
    EXPECT_LT(gpu.offer->AvailableBytes(), gpu.memory);
    EXPECT_GT(gpu.offer->AvailableBytes(), .89 * gpu.memory) << gpu.name;
  }
}

TEST(MemoryLimit, TakesTheMemoryOfAGpuInNoTableAsStated) {
  TrainingSystems own = {.accelerators = {{.name = "Mine", .memory = 24e9}}};
  own = WithOffers(std::move(own), Devices());
  EXPECT_EQ(own.accelerators[0].offer->capacity_bytes, 24000000000);
  EXPECT_FALSE(own.accelerators[0].offer->has_context);
}

TEST(MemoryLimit, CountsTheCommunicatorsOfAStrategy) {
  TrainingJob job = OfferedLlama();
  EXPECT_EQ(CommunicatorsOf(job).size(), 2U);  // of all, of data parallelism
  job.strategy.tensor = 2;
  job.strategy.pipeline = 2;
  EXPECT_EQ(CommunicatorsOf(job).size(), 4U);
  // Two of all and tensor ranks, data, and one stage to exchange with.
  EXPECT_EQ(CommunicatorBytes(job),
            3 * 544.0 * 1048576 + (256 + 32 * 12) * 1048576.0);
  // verl-project/verl#6408 frees 7 GB of Megatron-LM's communicators here, which are
  // more than these.
  EXPECT_LT(CommunicatorBytes(job), 7e9);
  job.strategy.gpus = 1;
  job.strategy.tensor = job.strategy.pipeline = 1;
  EXPECT_EQ(CommunicatorBytes(job), 0);
  EXPECT_EQ(ReservedBytes(LimitOfGpu(job.cluster.gpu), job),
            static_cast<double>(job.cluster.gpu.offer->AvailableBytes()));
}

TEST(MemoryLimit, CountsTheAllocatorsLossUnlessABudgetIsStated) {
  const TrainingJob job = OfferedLlama();
  MemoryLimit limit = LimitOfGpu(job.cluster.gpu);
  EXPECT_EQ(limit.allocator_loss, kAllocatorLoss);
  EXPECT_DOUBLE_EQ(PyTorchBytes(limit, job),
                   (1 - kAllocatorLoss) * ReservedBytes(limit, job));
  limit.allocator_loss = 0;
  EXPECT_EQ(PyTorchBytes(limit, job), ReservedBytes(limit, job));
  // SimuMax's fullest run that prints both: 87.03 GiB allocated, 92.26 reserved
  // within the loss.
  EXPECT_LT(1 - 87.08 / 92.26, kAllocatorLoss);
}

// A limit that a user states is PyTorch's alone.
TEST(MemoryLimit, LeavesAStatedLimitAsItIs) {
  EXPECT_EQ(PyTorchBytes({70e9}, OfferedLlama()), 70e9);
  EXPECT_LT(PyTorchBytes({70e9, true}, OfferedLlama()), 70e9);
  EXPECT_EQ(PyTorchBytes({1e6, true}, OfferedLlama()), 0);
}

// They ran. Where the allocator counted, the readings are within the limit.
TEST(MemoryLimit, AdmitsTheReadingsOfRunsThatRan) {
  const graph::CsvTable table = Table("memory.csv.gz");
  int readings = 0;
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const graph::CsvRow row(table, i);
    try {
      const TrainingJob job = JobOfReading(row, Offered());
      const double bytes = row.Positive("mem_max_allocated_bytes");
      EXPECT_LE(bytes, PyTorchBytesOf(job)) << row.Text("id");
      ++readings;
    } catch (const InputError&) {
      continue;  // not represented
    }
  }
  EXPECT_GE(readings, 180);
}

TEST(MemoryLimit, AdmitsMeasuredAndPredictedMemoryOfRuns) {
  int runs = 0;
  for (const TrainingRun& run : ReadRuns(Table("runs.csv"), Offered())) {
    if (!run.job) continue;
    const double limit = PyTorchBytesOf(*run.job);
    EXPECT_LE(run.memory_gib * kGiBytes, limit) << run.id;
    ++runs;
    if (run.job->strategy.microbatch == 0) continue;  // not known
    EXPECT_LE(PredictStepMemory(*run.job).Worst().Total(), limit) << run.id;
  }
  EXPECT_GE(runs, 35);
}

// The data sheet's 80 GiB hold the fastest strategy, the card does not.
TEST(MemoryLimit, RefusesAStrategyThatOnlyTheDataSheetHolds) {
  TrainingJob job = OfferedLlama();
  const StrategySpace space = WholeSpace(job);
  const MemoryLimit limit = LimitOfGpu(job.cluster.gpu);
  int between = 0;
  for (const RankedStrategy& ranked :
       SearchStrategies(job, space, {job.cluster.gpu.memory}, {.count = 200})
           .best) {
    job.strategy = ranked.strategy;
    between += ranked.bytes > PyTorchBytes(limit, job) ? 1 : 0;
  }
  EXPECT_GT(between, 0);
  for (const RankedStrategy& ranked :
       SearchStrategies(OfferedLlama(), space, limit, {.count = 200}).best) {
    job.strategy = ranked.strategy;
    EXPECT_LE(ranked.bytes, PyTorchBytes(limit, job) + kByteRounding);
  }
}

}  // namespace
}  // namespace acplan::costmodel
