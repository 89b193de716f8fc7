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

// Returns the share that the allocator loses: "6.5% that the allocator loses".
std::string LossText(const costmodel::MemoryLimit& limit) {
  return fmt::format("{:g}% that the allocator loses",
                     100 * limit.allocator_loss);
}

}  // namespace

std::string LimitOfJobText(const costmodel::TrainingJob& job,
                           const TrainQuestion& question) {
  const costmodel::Accelerator& gpu = job.cluster.gpu;
  if (!HasSum(gpu, question)) return "";
  const auto count = costmodel::CommunicatorsOf(job).size();
  std::string sum = OfferSum(*gpu.offer);
  if (count > 0) {
    sum +=
        fmt::format(" - {} of {} {}",
                    graph::FormatManyBytes(costmodel::CommunicatorBytes(job)),
                    count, count == 1 ? "communicator" : "communicators");
  }
  return fmt::format(
      "{} - {} = {} for tensors\n{}", sum, LossText(question.limit),
      graph::FormatManyBytes(BudgetOf(question, job)), OfferNotes(*gpu.offer));
}

std::string LimitText(const costmodel::Accelerator& gpu,
                      const TrainQuestion& question) {
  if (!HasSum(gpu, question)) {
    return fmt::format("{} of each GPU\n",
                       graph::FormatManyBytes(question.limit.bytes));
  }
  return fmt::format("{} = {}, less communicators and {}, for tensors\n{}",
                     OfferSum(*gpu.offer),
                     graph::FormatManyBytes(question.limit.bytes),
                     LossText(question.limit), OfferNotes(*gpu.offer));
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
