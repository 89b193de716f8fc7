#include "cli/planning/link_flags.h"

#include <fmt/format.h>

#include <cctype>

#include "cli/input/data_folder.h"
#include "cli/input/flags.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/device/device_table.h"
#include "graph/device/link_table.h"

namespace acplan::cli {
namespace {

constexpr char kFlag[] = "--offload";
constexpr std::string_view kOwnLink = "gpu";
constexpr int64_t kMostGpus = 64;

// Parses one rate, or one for each way.
graph::LinkRates ParseRates(const std::string& text) {
  const auto rate = [](std::string_view part) {
    return static_cast<double>(graph::ParseByteRate(part, kFlag));
  };
  const size_t comma = text.find(',');
  if (comma == std::string::npos) return graph::BothWays(rate(text));
  const std::string_view whole = text;
  return {.to_host = rate(whole.substr(0, comma)),
          .to_device = rate(whole.substr(comma + 1))};
}

// Parses the name of a link or a GPU, and the GPUs that share the link.
graph::LinkRates ParseLinkName(const std::string& text,
                               std::string_view device) {
  const size_t slash = text.find('/');
  const std::string name = text.substr(0, slash);
  const double gpus = slash == std::string::npos
                          ? 1
                          : static_cast<double>(ParseWhole(
                                text.substr(slash + 1), kFlag, 1, kMostGpus));
  const bool is_own = name == kOwnLink;
  if (is_own && device.empty())
    throw InputError(
        "--offload: gpu needs a trace that names its device; expected a rate "
        "(25GB/s), a link (pcie4) or a GPU (a100)");
  const graph::LinkTable links = graph::ReadLinkTable(LinksFile());
  const graph::HostLink& link =
      is_own ? graph::LinkOfDevice(links, device, kFlag)
             : graph::LinkNamed(links, graph::ReadDeviceTable(DevicesFile()),
                                name, kFlag);
  return {.to_host = link.to_host / gpus, .to_device = link.to_device / gpus};
}

// Parses a link. Rates begin with a digit or a point, names with a letter.
graph::LinkRates ParseLink(const std::string& text, std::string_view device) {
  const bool is_name =
      !text.empty() && std::isalpha(static_cast<unsigned char>(text[0]));
  return is_name ? ParseLinkName(text, device) : ParseRates(text);
}

}  // namespace

void LinkFlags::AddTo(CLI::App& app, const std::string& what,
                      const std::string& when) {
  app.add_option(
         "--offload", offload,
         "allow " + what +
             " to wait in host memory, over LINK: a rate (25GB/s), one "
             "to the host and one back (297GB/s,375GB/s), a name "
             "(pcie3 to pcie6, nvlink-c2c, a GPU such as gh200, gpu for "
             "the trace's own); pcie4/2: half of it, as of two GPUs "
             "behind a switch" +
             when)
      ->type_name("LINK");
  app.add_option("--host-memory", host_memory,
                 "with --offload: limit of the host memory in use")
      ->type_name("SIZE");
}

std::optional<problems::LinkLimits> LinkFlags::Parse(
    const problems::PlanOptions& options, std::string_view device) const {
  const bool may_offload =
      options.memory.model == problems::MemoryModel::kTrace && options.may_skip;
  if (!offload.empty() && !may_offload) {
    throw InputError(
        "--offload: needs a plan on a trace, with --decisions "
        "save,recompute,skip");
  }
  return Parse(device);
}

std::optional<problems::LinkLimits> LinkFlags::Parse(
    std::string_view device) const {
  if (offload.empty()) {
    if (host_memory.empty()) return std::nullopt;
    throw InputError("--host-memory: needs --offload");
  }
  problems::LinkLimits link;
  link.rates = ParseLink(offload, device);
  if (!host_memory.empty()) {
    link.host_memory_bytes = graph::ParseByteSize(host_memory, "--host-memory");
  }
  return link;
}

std::string_view DeviceOf(const ProfileInput& input) {
  return input.trace ? std::string_view(input.trace->device.name) : "";
}

std::string RatesText(const graph::LinkRates& rates) {
  if (rates.to_host == rates.to_device)
    return fmt::format("{:.4g} GB/s each way", rates.to_host / 1e9);
  return fmt::format("{:.4g} GB/s to the host and {:.4g} GB/s back",
                     rates.to_host / 1e9, rates.to_device / 1e9);
}

}  // namespace acplan::cli
