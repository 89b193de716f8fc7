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
  return fmt::format(
      "{} has {}{}; {} are the context of {}{}", offer.gpu,
      graph::FormatBytes(offer.capacity_bytes),
      offer.has_capacity
          ? ""
          : fmt::format(" ({:g}% of its data sheet's, for want of a reading)",
                        100 * graph::kShareOfNominal),
      graph::FormatBytes(offer.context_bytes), DriverOf(offer),
      offer.has_context ? "" : " (for want of a reading, the largest known)");
}

std::string OfferLine(const graph::DeviceOffer& offer) {
  return fmt::format("{}; {} are left for PyTorch\n", OfferSum(offer),
                     graph::FormatBytes(offer.AvailableBytes()));
}

nlohmann::ordered_json OfferJson(const graph::DeviceOffer& offer) {
  return {{"gpu", offer.gpu},
          {"capacity_bytes", offer.capacity_bytes},
          {"context_bytes", offer.context_bytes},
          {"available_bytes", offer.AvailableBytes()}};
}

}  // namespace acplan::cli
