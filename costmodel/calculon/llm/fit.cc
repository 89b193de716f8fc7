#include "costmodel/calculon/llm/fit.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <vector>

#include "costmodel/calculon/llm/schedule.h"

namespace acplan::costmodel {
namespace {

struct Degree {
  std::string_view name;
  int64_t size;
  int tier;
};

std::array<Degree, 3> DegreesOf(const Execution& execution) {
  return {{{"tensor_par", execution.tensor_par, execution.tensor_par_net},
           {"pipeline_par", execution.pipeline_par, execution.pipeline_par_net},
           {"data_par", execution.data_par, execution.data_par_net}}};
}

// Returns the number of processors that a tier connects; 1 if nothing uses it.
int64_t ProcessorsOn(int tier, const std::array<Degree, 3>& degrees) {
  int64_t processors = 1;
  for (const Degree& degree : degrees) {
    if (degree.tier == tier) processors *= degree.size;
  }
  return processors;
}

Verdict CheckNetworks(const System& system, const Execution& execution) {
  const int tiers = static_cast<int>(system.networks.size());
  if (execution.tensor_par_net >= tiers) return {Rule::kTensorNet};
  if (execution.pipeline_par_net >= tiers) return {Rule::kPipelineNet};
  if (execution.data_par_net >= tiers) return {Rule::kDataNet};
  const std::array<Degree, 3> degrees = DegreesOf(execution);
  for (int tier = 0; tier < tiers; ++tier) {
    const int64_t processors = ProcessorsOn(tier, degrees);
    if (processors == 1) continue;
    const Network& network = system.networks[tier];
    if (processors > network.size) return {Rule::kNetworkTooSmall, tier};
    if (network.must_be_filled && network.size % processors != 0) {
      return {Rule::kNetworkNotFilled, tier};
    }
  }
  return {};
}

Verdict CheckPipeline(const Model& model, const Execution& execution) {
  const int64_t blocks = BlocksPerProcessor(model, execution);
  if (execution.pipeline_interleaving > blocks) {
    return {Rule::kInterleavingTooLarge};
  }
  if (blocks % execution.pipeline_interleaving != 0) {
    return {Rule::kInterleavingNoFactor};
  }
  const bool offloads = execution.weight_offload ||
                        execution.activations_offload ||
                        execution.optimizer_offload;
  if (offloads && blocks <= 2) return {Rule::kTooFewBlocksToOffload};
  return {};
}

Verdict CheckSplits(const Model& model, const Execution& execution) {
  const int64_t parts = execution.tensor_par;
  if (execution.tensor_par_comm_type != TensorCommType::kAllReduce &&
      execution.microbatch_size * model.seq_size % parts != 0) {
    return {Rule::kSequenceSplit};
  }
  if (model.hidden % parts != 0) return {Rule::kHiddenSplit};
  if (model.feedforward % parts != 0) return {Rule::kFeedforwardSplit};
  if (model.attn_heads % parts != 0) return {Rule::kHeadsSplit};
  return {};
}

std::string DegreesText(int tier, const Execution& execution) {
  std::string text;
  for (const Degree& degree : DegreesOf(execution)) {
    if (degree.tier != tier || degree.size == 1) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : " * ", degree.name,
                        degree.size);
  }
  return text;
}

std::string NoTier(std::string_view key, int tier, const System& system) {
  return fmt::format("{}: expected a tier of the system, 0 to {}, found {}",
                     key, system.networks.size() - 1, tier);
}

std::string NoDivisor(std::string_view key, int64_t value,
                      const Execution& execution) {
  return fmt::format("tensor_par: expected a divisor of {} ({}), found {}", key,
                     value, execution.tensor_par);
}

}  // namespace

Verdict CheckFit(const Model& model, const System& system,
                 const Execution& execution) {
  if (const Verdict verdict = CheckNetworks(system, execution);
      !verdict.Fits()) {
    return verdict;
  }
  if (const Verdict verdict = CheckPipeline(model, execution);
      !verdict.Fits()) {
    return verdict;
  }
  if (const Verdict verdict = CheckSplits(model, execution); !verdict.Fits()) {
    return verdict;
  }
  if (!system.matrix.Supports(execution.datatype) ||
      !system.vector.Supports(execution.datatype)) {
    return {Rule::kDatatype};
  }
  return {};
}

std::string DescribeContradiction(const Verdict& verdict, const Model& model,
                                  const System& system,
                                  const Execution& execution) {
  switch (verdict.rule) {
    case Rule::kTensorNet:
      return NoTier("tensor_par_net", execution.tensor_par_net, system);
    case Rule::kPipelineNet:
      return NoTier("pipeline_par_net", execution.pipeline_par_net, system);
    case Rule::kDataNet:
      return NoTier("data_par_net", execution.data_par_net, system);
    case Rule::kSequenceSplit:
      return NoDivisor("microbatch_size * seq_size",
                       execution.microbatch_size * model.seq_size, execution);
    case Rule::kHiddenSplit:
      return NoDivisor("hidden", model.hidden, execution);
    case Rule::kFeedforwardSplit:
      return NoDivisor("feedforward", model.feedforward, execution);
    case Rule::kHeadsSplit:
      return NoDivisor("attn_heads", model.attn_heads, execution);
    case Rule::kDatatype:
      return fmt::format(
          "datatype: expected one that the system's matrix and vector engines "
          "have, found \"{}\"",
          kDatatypeNames[static_cast<size_t>(execution.datatype)]);
    default:
      return "";
  }
}

std::string DescribeInfeasible(const Verdict& verdict) {
  switch (verdict.rule) {
    case Rule::kNetworkTooSmall:
      return fmt::format("Network tier{} isn't big enough", verdict.tier);
    case Rule::kNetworkNotFilled:
      return fmt::format("Network tier{} isn't fully used", verdict.tier);
    case Rule::kInterleavingTooLarge:
      return "Pipeline interleaving must be less than or equal to the number "
             "of blocks per processor";
    case Rule::kInterleavingNoFactor:
      return "Pipeline interleaving must be a factor value of the number of "
             "blocks per processor";
    case Rule::kTooFewBlocksToOffload:
      return "Offloading requires each processor to handle at least 3 blocks";
    default:
      return "";
  }
}

std::string DescribeNumbers(const Verdict& verdict, const Model& model,
                            const System& system, const Execution& execution) {
  const int64_t blocks = BlocksPerProcessor(model, execution);
  switch (verdict.rule) {
    case Rule::kNetworkTooSmall:
    case Rule::kNetworkNotFilled:
      return fmt::format(
          "network tier {} connects {} processors{}, {} on it {} {}",
          verdict.tier, system.networks[verdict.tier].size,
          verdict.rule == Rule::kNetworkNotFilled ? " and must be filled" : "",
          DegreesText(verdict.tier, execution),
          verdict.rule == Rule::kNetworkNotFilled ? "do not divide that:"
                                                  : "need",
          ProcessorsOn(verdict.tier, DegreesOf(execution)));
    case Rule::kInterleavingTooLarge:
    case Rule::kInterleavingNoFactor:
      return fmt::format(
          "pipeline_interleaving {} must divide the {} blocks of a processor "
          "(num_blocks {} over pipeline_par {})",
          execution.pipeline_interleaving, blocks, model.num_blocks,
          execution.pipeline_par);
    case Rule::kTooFewBlocksToOffload:
      return fmt::format(
          "a processor has {} of the 3 blocks that offloading needs "
          "(num_blocks {} over pipeline_par {})",
          blocks, model.num_blocks, execution.pipeline_par);
    default:
      return "";
  }
}

}  // namespace acplan::costmodel
