#include "graph/trace/host_times_json.h"

#include <nlohmann/json.hpp>
#include <string_view>

namespace acplan::graph {
namespace {

constexpr double kMostUs = 1e6;

double ParseUs(const JsonField& object, std::string_view key) {
  const JsonField field = object.Get(key);
  const double us = field.NonNegativeNumber();
  if (us > kMostUs) field.Fail("microseconds up to 1e6");
  return us;
}

HostPair ParsePair(const JsonField& object, std::string_view key) {
  const JsonField pair = object.Get(key);
  return {.op_us = ParseUs(pair, "operator"), .view_us = ParseUs(pair, "view")};
}

nlohmann::ordered_json PairJson(const HostPair& pair) {
  return {{"operator", pair.op_us}, {"view", pair.view_us}};
}

}  // namespace

HostTimes ParseHostTimes(const JsonField& field) {
  const bool knows_quiet = field.Has("quiet_unit_us");
  return {
      .forward = ParsePair(field, "forward_us"),
      .backward = ParsePair(field, "backward_us"),
      .update_us = ParseUs(field, "update_us"),
      .call_us = ParseUs(field, "call_us"),
      .unit = ParsePair(field, "unit_us"),
      .quiet_unit = ParsePair(field, knows_quiet ? "quiet_unit_us" : "unit_us"),
      .module_us = ParseUs(field, "module_us"),
      .launch_us = ParseUs(field, "launch_us")};
}

nlohmann::ordered_json ToJson(const HostTimes& host) {
  return {{"forward_us", PairJson(host.forward)},
          {"backward_us", PairJson(host.backward)},
          {"update_us", host.update_us},
          {"call_us", host.call_us},
          {"unit_us", PairJson(host.unit)},
          {"quiet_unit_us", PairJson(host.quiet_unit)},
          {"module_us", host.module_us},
          {"launch_us", host.launch_us}};
}

}  // namespace acplan::graph
