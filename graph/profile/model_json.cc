#include "graph/profile/model_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "graph/base/message_text.h"
#include "graph/base/number_limits.h"

namespace acplan::graph {
namespace {

using Json = nlohmann::ordered_json;

// Walks over the tree recurse once for each level.
constexpr int kMostDepth = 1000;

std::string StringOr(const JsonField& object, std::string_view key) {
  return Optional(object, key, [](const JsonField& f) { return f.String(); })
      .value_or("");
}

int64_t CountOr(const JsonField& object, std::string_view key) {
  return Optional(
             object, key,
             [](const JsonField& f) { return f.Int(0, kMostExactInteger); })
      .value_or(0);
}

double NumberOr(const JsonField& object, std::string_view key) {
  return Optional(object, key,
                  [](const JsonField& f) { return f.NonNegativeNumber(); })
      .value_or(0);
}

ByKind<double> ParseErrorsOfKinds(const JsonField& field) {
  ByKind<double> errors = {};
  for (size_t kind = 0; kind < kOperatorKinds; ++kind) {
    const JsonField error =
        field.Get(ToString(static_cast<OperatorKind>(kind)));
    errors[kind] = error.NonNegativeNumber();
    if (errors[kind] >= 1) error.Fail("a number below 1");
  }
  return errors;
}

}  // namespace

ModelInfo ParseModelInfo(const JsonField& field) {
  return {.name = StringOr(field, "name"),
          .root_class = StringOr(field, "root_class"),
          .batch = CountOr(field, "batch"),
          .seq = CountOr(field, "seq"),
          .dtype = StringOr(field, "dtype"),
          .optimizer = StringOr(field, "optimizer")};
}

DeviceInfo ParseDeviceInfo(const JsonField& field) {
  return {.name = StringOr(field, "name"),
          .peak_flops = NumberOr(field, "peak_flops"),
          .bandwidth = NumberOr(field, "bandwidth"),
          .time_errors = Optional(field, "time_errors", ParseTimeErrors)};
}

TimeErrors ParseTimeErrors(const JsonField& field) {
  return {.median = NumberOr(field, "median"),
          .ninety = NumberOr(field, "ninety"),
          .ninety_of_kinds =
              Optional(field, "ninety_of_kinds", ParseErrorsOfKinds)};
}

Json ModelInfoJson(const ModelInfo& model) {
  return {{"name", model.name},   {"root_class", model.root_class},
          {"batch", model.batch}, {"seq", model.seq},
          {"dtype", model.dtype}, {"optimizer", model.optimizer}};
}

Json DeviceInfoJson(const DeviceInfo& device) {
  Json json = {{"name", device.name},
               {"peak_flops", device.peak_flops},
               {"bandwidth", device.bandwidth}};
  if (device.time_errors) {
    json["time_errors"] = TimeErrorsJson(*device.time_errors);
  }
  return json;
}

Json TimeErrorsJson(const TimeErrors& errors) {
  Json json = {{"median", errors.median}, {"ninety", errors.ninety}};
  if (!errors.ninety_of_kinds) return json;
  for (size_t kind = 0; kind < kOperatorKinds; ++kind) {
    const std::string name(ToString(static_cast<OperatorKind>(kind)));
    json["ninety_of_kinds"][name] = (*errors.ninety_of_kinds)[kind];
  }
  return json;
}

std::string ParseFqn(const JsonField& field) {
  std::string fqn = field.String();
  if (fqn.empty() || fqn.front() == '.' || fqn.back() == '.' ||
      fqn.find("..") != std::string::npos)
    field.Fail("a module's name without empty components");
  if (HasControls(fqn))
    field.Fail("a module's name without control or invisible characters");
  if (std::ranges::count(fqn, '.') >= kMostDepth)
    field.Fail(fmt::format("a name of at most {} components", kMostDepth));
  return fqn;
}

std::unordered_map<std::string_view, int> IndexFqns(
    const JsonField& modules, std::span<const std::string_view> fqns,
    std::string_view list) {
  std::unordered_map<std::string_view, int> index;
  for (size_t i = 0; i < fqns.size(); ++i) {
    const auto [first, is_new] =
        index.try_emplace(fqns[i], static_cast<int>(i));
    if (!is_new)
      modules.Elements()[i].Get("fqn").Complain(
          fmt::format("expected a name of its own, found {}, which is that of "
                      "{}[{}] too",
                      Quoted(fqns[i]), list, first->second));
  }
  return index;
}

}  // namespace acplan::graph
