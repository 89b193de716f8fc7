#include "cli/planning/plan_device.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/input/device_offer.h"
#include "cli/terminal/text.h"
#include "graph/allocator/least_device.h"
#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "graph/run/data_parallel.h"
#include "graph/run/run_on_device.h"
#include "problems/plan/device_run.h"

namespace acplan::cli {

using problems::DeviceNeed;
using problems::Plan;
using problems::PlanDevice;

bool IsForDevice(const std::string& budget, const AllocatorFlags& flags) {
  const bool is_for_device = !flags.device_memory.empty();
  if (is_for_device != budget.empty()) {
    throw InputError("expected one of --budget and --device-memory");
  }
  if (!is_for_device && !flags.FirstGiven().empty()) {
    throw InputError(
        fmt::format("{}: needs --device-memory", flags.FirstGiven()));
  }
  return is_for_device;
}

void RequireRun(const ProfileInput& input,
                const problems::MemoryOptions& memory) {
  if (input.TraceIfAny() == nullptr ||
      memory.model != problems::MemoryModel::kTrace) {
    throw InputError(
        "--device-memory: expected a trace and its memory model, as the "
        "allocator runs the allocations of a step");
  }
  if (memory.world_size > 1 || memory.without_states) {
    throw InputError(fmt::format(
        "--device-memory: cannot be combined with {}, as the allocations of a "
        "rank are not simulated",
        memory.world_size > 1 ? "--world-size" : "--without-states"));
  }
}

bool HasRun(const graph::Trace* trace, const problems::MemoryOptions& memory) {
  return trace != nullptr && memory.model == problems::MemoryModel::kTrace &&
         memory.world_size == 1 && !memory.without_states;
}

namespace {

// PyTorch has large_segment_size_mb from here on.
constexpr graph::PyTorchVersion kHasSegmentSize{2, 11};

// Returns the setting of --allocator, or else those to choose from, the plainest first. Pages of 12 MiB in place of 20 leave less of the device unused.
std::vector<problems::DeviceSetting> AllocatorsToTry(
    const std::string& flag, const graph::AllocatorConfig& config) {
  if (!flag.empty()) return {{.allocator = flag, .config = config}};
  std::vector<std::string> names{"native", "expandable_segments:True"};
  if (config.version >= kHasSegmentSize) {
    names.emplace_back("expandable_segments:True,large_segment_size_mb:12");
  }
  std::vector<problems::DeviceSetting> settings;
  for (const std::string& name : names) {
    settings.push_back({.allocator = name,
                        .config = graph::ParseAllocatorConfig(
                            name, "--allocator", config.version)});
  }
  return settings;
}

}  // namespace

problems::DeviceChoice ParseDevice(const AllocatorFlags& flags,
                                   const ProfileInput& input,
                                   const problems::PlanOptions& options) {
  const AllocatorQuestion question = flags.Question();
  RequireRun(input, options.memory);
  if (question.run.ddp) {
    graph::RequireDataParallel(*input.TraceIfAny(), *question.run.ddp, "--ddp");
  }
  const std::vector<problems::DeviceSetting> allocators =
      AllocatorsToTry(flags.allocator, question.config);
  problems::DeviceChoice choice{.memory_bytes = *question.device_bytes,
                                .settings = {}};
  if (question.offer) {
    choice.gpu = {.name = question.offer->gpu,
                  .capacity_bytes = question.offer->capacity_bytes,
                  .context_bytes = question.offer->context_bytes};
  }
  for (const bool makes_state_first : {false, true}) {
    if (makes_state_first !=
        question.makes_state_first.value_or(makes_state_first)) {
      continue;
    }
    for (problems::DeviceSetting setting : allocators) {
      setting.makes_state_first = makes_state_first;
      setting.ddp = flags.ddp;
      choice.settings.push_back(std::move(setting));
    }
  }
  return choice;
}

namespace {

std::string DefaultsText(const Plan& plan, const PlanDevice& device) {
  if (!device.default_least_device_bytes) return "";
  const int64_t memory = plan.budget_bytes - plan.reserve_bytes;
  const int64_t least = *device.default_least_device_bytes;
  std::string text = fmt::format(
      "otherwise this plan needs a device of {}{}", graph::FormatBytes(least),
      least > memory ? " and ends with out of memory" : "");
  if (device.default_recompute_ms) {
    text += fmt::format("; another plan fits and recomputes {}",
                        FormatMs(*device.default_recompute_ms));
  } else {
    text += ", as does every plan that was tried";
  }
  return text + "\n";
}

}  // namespace

std::string NamedDeviceText(const AllocatorFlags& flags) {
  if (flags.device_memory.empty()) return "";
  const auto device = ParseDeviceMemory(flags.device_memory, "--device-memory");
  return device.offer ? OfferLine(*device.offer) : "";
}

std::string SettingsText(const PlanDevice& device) {
  std::string text;
  if (!device.ddp.empty()) {
    text +=
        fmt::format("in DistributedDataParallel: {}\n",
                    device.ddp == "default" ? "default arguments" : device.ddp);
  }
  if (device.allocator != "native") {
    text += fmt::format("set PYTORCH_ALLOC_CONF={}\n", device.allocator);
  }
  if (device.makes_state_first) {
    text +=
        "make the optimizer's state before the first step: "
        "acplan.make_optimizer_state(optimizer)\n";
  }
  return text;
}

std::string DeviceText(const Plan& plan) {
  if (!plan.device) return "";
  const PlanDevice& device = *plan.device;
  std::string text = fmt::format(
      "on the device   {} allocated, {} reserved at most; the least device has "
      "{} (PyTorch {})\n",
      graph::FormatBytes(device.allocated_bytes),
      graph::FormatBytes(device.reserved_bytes),
      graph::FormatBytes(device.least_device_bytes), device.torch_version);
  if (device.retries > 0) {
    text += fmt::format(
        "{} {} in the iterations that repeat: each empties the cache and waits "
        "for the device\n",
        device.retries, device.retries == 1 ? "retry" : "retries");
  }
  return text + SettingsText(device) + DefaultsText(plan, device) + "\n";
}

namespace {

std::string LeastText(const DeviceNeed& need) {
  return need.least_device_bytes ? graph::FormatBytes(*need.least_device_bytes)
                                 : "none";
}

}  // namespace

std::string SettingText(const problems::DeviceSetting& setting) {
  const bool is_expandable = setting.allocator == "expandable_segments:True";
  return fmt::format("{}{}", setting.makes_state_first ? "state first, " : "",
                     setting.allocator == "native" ? "native segments"
                     : is_expandable               ? "expandable segments"
                                                   : setting.allocator);
}

std::string LeastDevicesText(const graph::Trace* trace, const Plan& plan) {
  if (!HasRun(trace, plan.memory) || !plan.HasPlan() || plan.device ||
      plan.offload || plan.limit == "interrupted") {
    return "";
  }
  const std::vector<DeviceNeed> needs =
      problems::NeedsOfPlan(*trace, plan.modules, graph::kNewestAllocator);
  std::string text;
  for (const size_t k : {0, 2}) {
    text += fmt::format("{}{} native, {} expandable segments\n",
                        k == 0 ? "least device    " : "  state first   ",
                        LeastText(needs[k]), LeastText(needs[k + 1]));
  }
  return text;
}

std::string NeedsText(const std::vector<DeviceNeed>& needs,
                      const Terminal& terminal) {
  if (needs.empty()) return "";
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight});
  table.AddRow({"on a device", "allocated", "reserved", "least device"});
  for (const DeviceNeed& need : needs) {
    table.AddRow({SettingText(need.setting),
                  graph::FormatBytes(need.allocated_bytes),
                  graph::FormatBytes(need.reserved_bytes), LeastText(need)});
  }
  return table.ToString(terminal);
}

nlohmann::ordered_json NeedsJson(const std::vector<DeviceNeed>& needs) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const DeviceNeed& need : needs) json.push_back(NeedJson(need));
  return json;
}

nlohmann::ordered_json NeedJson(const DeviceNeed& need) {
  return {
      {"allocator", need.setting.allocator},
      {"optimizer_state", need.setting.makes_state_first ? "first" : "update"},
      {"allocated_bytes", need.allocated_bytes},
      {"reserved_bytes", need.reserved_bytes},
      {"least_device_bytes",
       need.least_device_bytes
           ? nlohmann::ordered_json(*need.least_device_bytes)
           : nullptr}};
}

std::string NoFitText(const std::optional<int64_t>& least_device_bytes) {
  if (!least_device_bytes) return "";
  return fmt::format(
      "live bytes of some plans fit, but no run of those tried ends: the least "
      "device of them has {}\n",
      FormatBytesExactly(*least_device_bytes));
}

}  // namespace acplan::cli
