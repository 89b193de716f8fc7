#include "cli/planning/allocator_flags.h"

#include <fmt/format.h>

#include "cli/input/device_offer.h"
#include "graph/allocator/device_memory.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

int64_t AllocatorQuestion::device() const {
  return device_bytes.value_or(graph::kLargestDevice);
}

void AllocatorFlags::AddTo(CLI::App& app, const std::string& of_device) {
  app.add_option(
         "--allocator", allocator,
         "PyTorch's allocator: native, or a value of PYTORCH_ALLOC_CONF")
      ->type_name("CONF");
  app.add_option("--device-memory", device_memory, of_device)
      ->type_name("SIZE|GPU");
  app.add_option("--torch-version", torch_version,
                 fmt::format("version of PyTorch whose allocator is simulated, "
                             "{}.{} to {}.{} (default: the newest)",
                             graph::kOldestAllocator.major,
                             graph::kOldestAllocator.minor,
                             graph::kNewestAllocator.major,
                             graph::kNewestAllocator.minor))
      ->type_name("VERSION");
}

void AllocatorFlags::AddOptimizerStateTo(CLI::App& app,
                                         const std::string& default_text) {
  app.add_option(
         "--optimizer-state", optimizer_state,
         fmt::format(
             "when a run creates optimizer state: update (in the first update, "
             "as optimizers do) or first (before the first step); default: {}",
             default_text))
      ->type_name("WHEN");
}

void AllocatorFlags::AddWithoutLeastTo(CLI::App& app) {
  app.add_flag("--without-least-device", without_least_device,
               "do not search for the least device");
}

std::string_view AllocatorFlags::FirstGiven() const {
  if (!allocator.empty()) return "--allocator";
  if (!device_memory.empty()) return "--device-memory";
  if (!torch_version.empty()) return "--torch-version";
  if (!optimizer_state.empty()) return "--optimizer-state";
  return without_least_device ? "--without-least-device" : "";
}

AllocatorQuestion AllocatorFlags::Question() const {
  const graph::PyTorchVersion version =
      torch_version.empty()
          ? graph::kNewestAllocator
          : graph::ParsePyTorchVersion(torch_version, "--torch-version");
  AllocatorQuestion question{
      .config = graph::ParseAllocatorConfig(
          allocator.empty() ? "native" : allocator, "--allocator", version)};
  if (!device_memory.empty()) {
    const DeviceMemoryArgument device =
        ParseDeviceMemory(device_memory, "--device-memory");
    question.device_bytes = device.bytes;
    question.offer = device.offer;
  }
  question.wants_least_device = !without_least_device;
  if (!optimizer_state.empty()) {
    if (optimizer_state != "update" && optimizer_state != "first") {
      throw InputError(
          fmt::format("--optimizer-state: expected update or first, found {}",
                      graph::Quoted(optimizer_state, 100)));
    }
    question.makes_state_first = optimizer_state == "first";
  }
  return question;
}

}  // namespace acplan::cli
