#include "cli/planning/allocator_flags.h"

#include <fmt/format.h>

#include "cli/input/device_offer.h"
#include "cli/input/flags.h"
#include "graph/allocator/device_memory.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

// Returns the option of a run that a value of --empty-cache sets.
bool& EmptiedCache(graph::RunOptions& run, const std::string& name) {
  if (name == "after-forward") return run.empties_cache_after_forward;
  if (name == "before-update") return run.empties_cache_before_update;
  if (name == "before-first-update") {
    return run.empties_cache_before_first_update;
  }
  throw InputError(
      fmt::format("--empty-cache: expected some of after-forward, "
                  "before-update, before-first-update, found {}",
                  graph::Quoted(name, 100)));
}

}  // namespace

int64_t AllocatorQuestion::device() const {
  return device_bytes.value_or(graph::kLargestDevice);
}

graph::RunOptions AllocatorQuestion::run_options() const {
  graph::RunOptions options = run;
  options.makes_state_first = makes_state_first.value_or(false);
  return options;
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

void AllocatorFlags::AddRunTo(CLI::App& app) {
  app.add_option("--empty-cache", empty_cache,
                 "when a run calls torch.cuda.empty_cache(): some of "
                 "after-forward, before-update, before-first-update")
      ->type_name("A,B");
  app.add_option("--model-order", model_order,
                 "the order in which a run puts the model's tensors on the "
                 "device: modules (as Module.to does) or largest-first; "
                 "default: modules")
      ->type_name("ORDER");
}

void AllocatorFlags::AddDdpTo(CLI::App& app) {
  app.add_option("--ddp", ddp,
                 "the model is in a DistributedDataParallel: default, or its "
                 "arguments, such as bucket_cap_mb:10,"
                 "gradient_as_bucket_view:True")
      ->type_name("ARGUMENTS");
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
  if (!empty_cache.empty()) return "--empty-cache";
  if (!model_order.empty()) return "--model-order";
  if (!ddp.empty()) return "--ddp";
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
  for (const std::string& name : ParseNames(empty_cache, "--empty-cache")) {
    EmptiedCache(question.run, name) = true;
  }
  if (!model_order.empty() && model_order != "modules" &&
      model_order != "largest-first") {
    throw InputError(fmt::format(
        "--model-order: expected modules or largest-first, found {}",
        graph::Quoted(model_order, 100)));
  }
  question.run.puts_largest_first = model_order == "largest-first";
  if (!ddp.empty()) question.run.ddp = graph::ParseDdpOptions(ddp, "--ddp");
  return question;
}

}  // namespace acplan::cli
