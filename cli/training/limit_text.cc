#include "cli/training/limit_text.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/input/device_offer.h"
#include "costmodel/training/memory/memory_limit.h"
#include "graph/base/byte_size.h"

namespace acplan::cli {
namespace {

bool HasSum(const costmodel::Accelerator& gpu, const TrainQuestion& question) {
  return question.limit.has_communicators && gpu.offer.has_value();
}

}  // namespace

std::string LimitOfJobText(const costmodel::TrainingJob& job,
                           const TrainQuestion& question) {
  const costmodel::Accelerator& gpu = job.cluster.gpu;
  if (!HasSum(gpu, question)) return "";
  const auto count = costmodel::CommunicatorsOf(job).size();
  const std::string loss =
      fmt::format("its allocator loses {:g}% of that: {} for tensors\n",
                  100 * question.limit.allocator_loss,
                  graph::FormatManyBytes(BudgetOf(question, job)));
  if (count == 0) return OfferLine(*gpu.offer) + loss;
  return fmt::format(
      "{} - {} of {} {} = {} for PyTorch\n{}{}", OfferSum(*gpu.offer),
      graph::FormatManyBytes(costmodel::CommunicatorBytes(job)), count,
      count == 1 ? "communicator" : "communicators",
      graph::FormatManyBytes(costmodel::ReservedBytes(question.limit, job)),
      loss, OfferNotes(*gpu.offer));
}

std::string LimitText(const costmodel::Accelerator& gpu,
                      const TrainQuestion& question) {
  if (!HasSum(gpu, question)) {
    return fmt::format("{} of each GPU\n",
                       graph::FormatManyBytes(question.limit.bytes));
  }
  return fmt::format(
      "{} = {} for PyTorch and communicators\n"
      "PyTorch's allocator loses {:g}% of its part\n{}",
      OfferSum(*gpu.offer), graph::FormatManyBytes(question.limit.bytes),
      100 * question.limit.allocator_loss, OfferNotes(*gpu.offer));
}

nlohmann::ordered_json LimitOfJobJson(const costmodel::TrainingJob& job,
                                      const TrainQuestion& question) {
  const costmodel::Accelerator& gpu = job.cluster.gpu;
  if (!HasSum(gpu, question)) return nlohmann::ordered_json::object();
  nlohmann::ordered_json device = OfferJson(*gpu.offer);
  device["communicators"] = costmodel::CommunicatorsOf(job).size();
  device["communicator_bytes"] = costmodel::CommunicatorBytes(job);
  device["allocator_loss"] = question.limit.allocator_loss;
  return {{"device", std::move(device)}};
}

}  // namespace acplan::cli
