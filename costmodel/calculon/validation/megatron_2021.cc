#include "costmodel/calculon/validation/megatron_2021.h"

#include <array>
#include <cmath>
#include <cstdint>

#include "costmodel/calculon/llm/evaluation.h"

namespace acplan::costmodel {
namespace {

struct Row {
  std::string_view model;
  int64_t hidden;
  int64_t blocks;
  int64_t heads;
  int64_t tensor_par;
  int64_t pipeline_par;
  int64_t processors;
  int64_t batch;
  double teraflops;
};

constexpr std::array<Row, 10> kRows = {{
    {"1.7B", 2304, 24, 24, 1, 1, 32, 512, 137},
    {"3.6B", 3072, 30, 32, 2, 1, 64, 512, 138},
    {"7.5B", 4096, 36, 32, 4, 1, 128, 512, 142},
    {"18.4B", 6144, 40, 48, 8, 1, 256, 1024, 135},
    {"39.1B", 8192, 48, 64, 8, 2, 512, 1536, 138},
    {"76.1B", 10240, 60, 80, 8, 4, 1024, 1792, 140},
    {"145.6B", 12288, 80, 96, 8, 8, 1536, 2304, 148},
    {"310.1B", 16384, 96, 128, 8, 16, 1920, 2160, 155},
    {"529.6B", 20480, 105, 128, 8, 35, 2520, 2520, 163},
    {"1008B", 25600, 128, 160, 8, 64, 3072, 3072, 163},
}};

constexpr int64_t kSequence = 2048;

Model ModelOf(const Row& row) {
  return {.hidden = row.hidden,
          .feedforward = 4 * row.hidden,
          .seq_size = kSequence,
          .attn_heads = row.heads,
          .attn_size = row.hidden / row.heads,
          .num_blocks = row.blocks};
}

Execution ExecutionOf(const Row& row) {
  return {.num_procs = row.processors,
          .tensor_par = row.tensor_par,
          .pipeline_par = row.pipeline_par,
          .data_par = row.processors / row.tensor_par / row.pipeline_par,
          .tensor_par_net = 0,
          .pipeline_par_net = 1,
          .data_par_net = 1,
          .batch_size = row.batch,
          .fused_activation = true,
          .activation_recompute = Recompute::kFull,
          .tensor_par_comm_type = row.pipeline_par > 1
                                      ? TensorCommType::kScatteredSend
                                      : TensorCommType::kAllReduce};
}

// Returns the FLOPs of a batch, by equation 3 of the paper.
double BatchFlops(const Row& row) {
  const double hidden = static_cast<double>(row.hidden);
  const double blocks = static_cast<double>(row.blocks);
  const double sequence = kSequence;
  return 96 * static_cast<double>(row.batch) * sequence * blocks * hidden *
         hidden *
         (1 + sequence / (6 * hidden) + 51200 / (16 * blocks * hidden));
}

MegatronRun RunFastest(const Row& row, const System& system) {
  MegatronRun best;
  best.model = row.model;
  best.measured = row.teraflops;
  Execution execution = ExecutionOf(row);
  const int64_t blocks = row.blocks / row.pipeline_par;
  for (const int64_t microbatch : {1, 2, 4, 8}) {
    if (row.batch / execution.data_par % microbatch != 0) continue;
    execution.microbatch_size = microbatch;
    const int64_t most = row.pipeline_par > 1 ? blocks : 1;
    for (int64_t chunks = 1; chunks <= most; ++chunks) {
      if (blocks % chunks != 0) continue;
      execution.pipeline_interleaving = chunks;
      const Evaluation evaluation = Evaluate(ModelOf(row), system, execution);
      if (!evaluation.verdict.Fits()) continue;
      const double teraflops = BatchFlops(row) / evaluation.times.total /
                               static_cast<double>(row.processors) / 1e12;
      if (teraflops <= best.computed) continue;
      best.computed = teraflops;
      best.execution = execution;
    }
  }
  return best;
}

}  // namespace

std::vector<MegatronRun> CompareMegatron2021(
    const std::filesystem::path& data) {
  const System system = ReadSystem(data / "systems" / "a100_80g.json");
  std::vector<MegatronRun> runs;
  for (const Row& row : kRows) {
    runs.push_back(RunFastest(row, system));
  }
  return runs;
}

double AverageTimeError(const std::vector<MegatronRun>& runs) {
  double sum = 0;
  for (const MegatronRun& run : runs) sum += std::abs(run.TimeError());
  return sum / static_cast<double>(runs.size());
}

}  // namespace acplan::costmodel
