#include "cli/input/device_offer.h"

#include <fmt/format.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/input/data_folder.h"
#include "graph/base/byte_size.h"

namespace acplan::cli {
namespace {

std::string_view DriverOf(const graph::DeviceOffer& offer) {
  return offer.architecture.starts_with("gfx") ? "HIP" : "CUDA";
}

}  // namespace

DeviceMemoryArgument ParseDeviceMemory(const std::string& text,
                                       const std::string& flag) {
  // Sizes begin with a digit, a point or a sign, names of GPUs with a letter.
  if (text.empty() || !std::isalpha(static_cast<unsigned char>(text[0]))) {
    return {.bytes = graph::ParseByteSize(text, flag)};
  }
  const graph::DeviceOffer offer =
      graph::OfferOf(graph::ReadDeviceTable(DevicesFile()), text, flag);
  return {.bytes = offer.AvailableBytes(), .offer = offer};
}

std::string OfferSum(const graph::DeviceOffer& offer) {
  return fmt::format("{}: {} - {} of {} context", offer.gpu,
                     graph::FormatBytes(offer.capacity_bytes),
                     graph::FormatBytes(offer.context_bytes), DriverOf(offer));
}

std::string OfferNotes(const graph::DeviceOffer& offer) {
  std::string notes;
  if (!offer.has_capacity) {
    notes +=
        fmt::format("no reading of its capacity: {:g}% of the data sheet\n",
                    100 * graph::kShareOfNominal);
  }
  if (!offer.has_context) {
    notes += "no reading of its context: the largest of other GPUs\n";
  }
  return notes;
}

std::string OfferLine(const graph::DeviceOffer& offer) {
  return fmt::format("{} = {} for PyTorch\n{}", OfferSum(offer),
                     graph::FormatBytes(offer.AvailableBytes()),
                     OfferNotes(offer));
}

nlohmann::ordered_json OfferJson(const graph::DeviceOffer& offer) {
  return {{"gpu", offer.gpu},
          {"capacity_bytes", offer.capacity_bytes},
          {"context_bytes", offer.context_bytes},
          {"available_bytes", offer.AvailableBytes()}};
}

}  // namespace acplan::cli
