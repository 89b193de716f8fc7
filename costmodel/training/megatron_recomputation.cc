// There are few such policies: as many as a stage has layers, and the sets of parts that the
// model has. Each is computed.
#include "costmodel/training/megatron_recomputation.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

// Returns the parts that the model's layers have, by the names of Megatron-Core.
std::vector<std::set<LayerPart>> PartsOfModel(
    const ModelShape& shape, const std::vector<StageContent>& stages) {
  std::vector<std::string_view> names = {"core_attn", "layernorm"};
  const bool has_dense = std::ranges::any_of(
      stages, [](const StageContent& stage) { return stage.dense_layers > 0; });
  if (has_dense) names.emplace_back("mlp");
  if (shape.IsLatent()) names.emplace_back("mla_up_proj");
  if (shape.IsMoe()) {
    names.emplace_back("moe");
    names.emplace_back("moe_act");
  }
  std::vector<std::set<LayerPart>> parts;
  for (const std::string_view name : names) {
    parts.push_back(*LayerPartsNamed(name));
  }
  return parts;
}

// Returns the layers of the smallest chunk.
int64_t LayersOfSmallestChunk(const TrainingJob& job) {
  std::vector<int64_t> layers = PiecesOfChunks(job);
  --layers.front();
  layers.back() -= 1 + job.shape.mtp_layers;
  return std::ranges::min(layers);
}

std::vector<TrainingStrategy> Policies(const TrainingJob& job) {
  std::vector<TrainingStrategy> policies;
  TrainingStrategy strategy = job.strategy;
  strategy.parts.clear();
  strategy.full_layers = strategy.every_layers = 0;
  strategy.recomputation = Recomputation::kNone;
  policies.push_back(strategy);
  const std::vector<StageContent> stages = DivideLayers(job);
  int64_t most_layers = 0;
  for (const StageContent& stage : stages) {
    most_layers = std::max(most_layers, stage.Layers());
  }
  strategy.recomputation = Recomputation::kFull;
  policies.push_back(strategy);  // all layers
  // Each chunk of a stage recomputes as many layers, so a smaller one would recompute less
  // than its share of the stage's.
  const int64_t most_of_chunk =
      strategy.chunks == 1 ? most_layers : LayersOfSmallestChunk(job);
  for (int64_t layers = 1; layers <= most_of_chunk; ++layers) {
    strategy.full_layers = layers * strategy.chunks;
    if (strategy.full_layers < most_layers) policies.push_back(strategy);
  }
  strategy.full_layers = 0;
  strategy.recomputation = Recomputation::kSelective;
  const std::vector<std::set<LayerPart>> parts =
      PartsOfModel(job.shape, stages);
  for (size_t set = 1; set < size_t{1} << parts.size(); ++set) {
    strategy.parts.clear();
    for (size_t k = 0; k < parts.size(); ++k) {
      if ((set >> k & 1) != 0) {
        strategy.parts.insert(parts[k].begin(), parts[k].end());
      }
    }
    policies.push_back(strategy);
  }
  return policies;
}

}  // namespace

MegatronAnswer BestOfMegatron(const TrainingJob& job, double budget) {
  MegatronAnswer answer;
  std::optional<InputError> refusal;
  std::tuple<double, double> best_order;
  for (const TrainingStrategy& strategy : Policies(job)) {
    TrainingJob one = job;
    one.strategy = strategy;
    try {
      CheckStatedJob(one);
      TrainingReport report = ReportOfTraining(one, budget);
      const double bytes = report.memory.Worst().Total();
      const bool fits = report.Fits(budget);
      const std::tuple order = fits ? std::tuple(report.time.Total(), bytes)
                                    : std::tuple(bytes, report.time.Total());
      const bool is_better = answer.tried_count == 0 ||
                             (fits && !answer.fits) ||
                             (fits == answer.fits && order < best_order);
      ++answer.tried_count;
      if (!is_better) continue;
      best_order = order;
      answer.fits = fits;
      answer.report = std::move(report);
    } catch (const InputError& error) {
      if (!refusal) refusal = error;
    }
  }
  if (answer.tried_count == 0 && refusal) throw *refusal;
  return answer;
}

}  // namespace acplan::costmodel
