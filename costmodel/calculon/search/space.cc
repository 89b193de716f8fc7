#include "costmodel/calculon/search/space.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

// Returns the divisors in ascending order.
std::vector<int64_t> Divisors(int64_t number) {
  std::vector<int64_t> divisors;
  std::vector<int64_t> large;
  for (int64_t i = 1; i * i <= number; ++i) {
    if (number % i != 0) continue;
    divisors.push_back(i);
    if (i != number / i) large.push_back(number / i);
  }
  divisors.insert(divisors.end(), large.rbegin(), large.rend());
  return divisors;
}

std::vector<int64_t> TensorDegrees(const SearchProblem& problem) {
  std::vector<int64_t> degrees = Divisors(problem.num_procs);
  std::erase_if(degrees, [&](int64_t degree) {
    return problem.model.hidden % degree != 0 ||
           problem.model.attn_heads % degree != 0;
  });
  return degrees;
}

std::vector<int64_t> PipelineDegrees(const SearchProblem& problem,
                                     int64_t tensor_par) {
  const int64_t blocks = problem.model.num_blocks;
  const int64_t rest = problem.num_procs / tensor_par;
  std::vector<int64_t> degrees = Divisors(std::min(rest, blocks));
  std::erase_if(degrees, [&](int64_t degree) {
    return rest % degree != 0 || blocks % degree != 0;
  });
  return degrees;
}

std::vector<int64_t> Interleavings(const SearchProblem& problem,
                                   int64_t pipeline_par) {
  if (pipeline_par == 1) return {1};
  return Divisors((problem.model.num_blocks + pipeline_par - 1) / pipeline_par);
}

std::vector<bool> Both(bool has_both) {
  return has_both ? std::vector<bool>{true, false} : std::vector<bool>{false};
}

void AddUnits(const Execution& degrees, std::vector<SearchUnit>& units) {
  for (const Recompute recompute :
       {Recompute::kFull, Recompute::kAttentionOnly, Recompute::kNone}) {
    for (const bool is_sharded : Both(degrees.data_par > 1)) {
      for (const TensorCommType comm_type :
           {TensorCommType::kAllReduce, TensorCommType::kScatteredSend,
            TensorCommType::kScattered}) {
        SearchUnit& unit = units.emplace_back(degrees);
        unit.activation_recompute = recompute;
        unit.optimizer_sharding = is_sharded;
        unit.tensor_par_comm_type = comm_type;
      }
    }
  }
}

}  // namespace

std::vector<SearchUnit> SearchUnits(const SearchProblem& problem) {
  std::vector<SearchUnit> units;
  Execution degrees{.num_procs = problem.num_procs,
                    .datatype = problem.datatype};
  for (const int64_t tensor_par : TensorDegrees(problem)) {
    degrees.tensor_par = tensor_par;
    for (const int64_t pipeline_par : PipelineDegrees(problem, tensor_par)) {
      degrees.pipeline_par = pipeline_par;
      degrees.data_par = problem.num_procs / tensor_par / pipeline_par;
      degrees.batch_size =
          problem.max_batch / degrees.data_par * degrees.data_par;
      if (degrees.batch_size == 0) continue;
      for (const int64_t interleaving : Interleavings(problem, pipeline_par)) {
        degrees.pipeline_interleaving = interleaving;
        AddUnits(degrees, units);
      }
    }
  }
  return units;
}

std::vector<SearchVariant> SearchVariants(const SearchProblem& problem,
                                          const SearchUnit& unit) {
  const bool has_mem2 = problem.system.mem2.capacity > 0;
  const bool is_full = unit.activation_recompute == Recompute::kFull;
  std::vector<TensorOverlap> overlaps = {TensorOverlap::kNone};
  if (unit.tensor_par > 1 && problem.allows_tensor_overlap) {
    overlaps.insert(overlaps.end(),
                    {TensorOverlap::kRing, TensorOverlap::kPipe});
  }
  std::vector<SearchVariant> variants;
  SearchVariant v;
  for (const bool redo : Both(unit.IsSequenceParallel() && !is_full)) {
    v.seq_par_ag_redo = redo;
    for (const bool overlap :
         Both(unit.data_par > 1 && problem.allows_data_overlap)) {
      v.data_par_overlap = overlap;
      for (const TensorOverlap tensor_overlap : overlaps) {
        v.tensor_par_overlap = tensor_overlap;
        for (const bool weights : Both(has_mem2)) {
          v.weight_offload = weights;
          for (const bool activations : Both(has_mem2 && !is_full)) {
            v.activations_offload = activations;
            for (const bool optimizer : Both(has_mem2)) {
              v.optimizer_offload = optimizer;
              for (const bool is_fused : problem.fused_activation) {
                v.fused_activation = is_fused;
                variants.push_back(v);
              }
            }
          }
        }
      }
    }
  }
  return variants;
}

std::vector<int64_t> MicrobatchSizes(const SearchProblem& problem,
                                     const SearchUnit& unit) {
  std::vector<int64_t> sizes = Divisors(unit.batch_size / unit.data_par);
  std::erase_if(sizes, [&](int64_t size) {
    return size * problem.model.seq_size % unit.tensor_par != 0;
  });
  return sizes;
}

TierCounts SearchTiers(const SearchProblem& problem, const SearchUnit& unit) {
  const int tiers = static_cast<int>(problem.system.networks.size());
  return {.tensor = unit.tensor_par > 1 ? tiers : 1,
          .pipeline = unit.pipeline_par > 1 ? tiers : 1,
          .data = unit.data_par > 1 ? tiers : 1};
}

int64_t CountVariant(const SearchProblem& problem, const SearchUnit& unit) {
  return static_cast<int64_t>(MicrobatchSizes(problem, unit).size()) *
         SearchTiers(problem, unit).Combinations();
}

Execution MakeExecution(const SearchUnit& unit, const SearchVariant& variant) {
  Execution execution = unit;
  execution.seq_par_ag_redo = variant.seq_par_ag_redo;
  execution.data_par_overlap = variant.data_par_overlap;
  execution.tensor_par_overlap = variant.tensor_par_overlap;
  execution.weight_offload = variant.weight_offload;
  execution.activations_offload = variant.activations_offload;
  execution.optimizer_offload = variant.optimizer_offload;
  execution.fused_activation = variant.fused_activation;
  return execution;
}

}  // namespace acplan::costmodel
