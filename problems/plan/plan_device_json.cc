#include "problems/plan/plan_device_json.h"

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

namespace acplan::problems {

PlanDevice PlanDeviceFromJson(const graph::JsonField& field) {
  PlanDevice device{
      .allocator = field.Get("allocator").String(),
      .torch_version = field.Get("torch_version").String(),
      .makes_state_first = field.Get("optimizer_state_first").Bool(),
      .allocated_bytes = field.Get("allocated_bytes").Bytes(),
      .reserved_bytes = field.Get("reserved_bytes").Bytes(),
      .least_device_bytes = field.Get("least_device_bytes").Bytes(),
      .retries =
          field.Get("retries").Int(0, std::numeric_limits<int64_t>::max())};
  if (field.Has("ddp")) device.ddp = field.Get("ddp").String();
  if (field.Has("default_least_device_bytes")) {
    device.default_least_device_bytes =
        field.Get("default_least_device_bytes").Bytes();
  }
  if (field.Has("default_recompute_ms")) {
    device.default_recompute_ms =
        field.Get("default_recompute_ms").NonNegativeNumber();
  }
  if (field.Has("gpu")) {
    const graph::JsonField gpu = field.Get("gpu");
    device.gpu = {.name = gpu.Get("name").String(),
                  .capacity_bytes = gpu.Get("capacity_bytes").Bytes(),
                  .context_bytes = gpu.Get("context_bytes").Bytes()};
  }
  return device;
}

nlohmann::ordered_json ToJson(const PlanDevice& device) {
  nlohmann::ordered_json json = {
      {"allocator", device.allocator},
      {"torch_version", device.torch_version},
      {"optimizer_state_first", device.makes_state_first},
      {"allocated_bytes", device.allocated_bytes},
      {"reserved_bytes", device.reserved_bytes},
      {"least_device_bytes", device.least_device_bytes},
      {"retries", device.retries}};
  if (!device.ddp.empty()) json["ddp"] = device.ddp;
  if (device.default_least_device_bytes) {
    json["default_least_device_bytes"] = *device.default_least_device_bytes;
  }
  if (device.default_recompute_ms) {
    json["default_recompute_ms"] = *device.default_recompute_ms;
  }
  if (device.gpu) {
    json["gpu"] = {{"name", device.gpu->name},
                   {"capacity_bytes", device.gpu->capacity_bytes},
                   {"context_bytes", device.gpu->context_bytes}};
  }
  return json;
}

}  // namespace acplan::problems
