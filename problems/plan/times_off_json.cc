#include "problems/plan/times_off_json.h"

#include <nlohmann/json.hpp>
#include <string>

namespace acplan::problems {

using graph::JsonField;
using Json = nlohmann::ordered_json;

namespace {

double ReadNumber(const JsonField& field) { return field.NonNegativeNumber(); }

WorstRegret ReadRegret(const JsonField& field) {
  return {.step = field.Get("step").NonNegativeNumber(),
          .recomputation = graph::Optional(field, "recomputation", ReadNumber)};
}

RegretBounds ReadBounds(const JsonField& field) {
  return {.upper = ReadRegret(field),
          .lower = graph::Optional(field, "at_least", ReadRegret)};
}

Json ToJson(const WorstRegret& regret) {
  Json json = {{"step", regret.step}, {"recomputation", nullptr}};
  if (regret.recomputation) json["recomputation"] = *regret.recomputation;
  return json;
}

Json ToJson(const RegretBounds& bounds) {
  Json json = ToJson(bounds.upper);
  if (bounds.lower) json["at_least"] = ToJson(*bounds.lower);
  return json;
}

double ReadFactor(const JsonField& field) {
  const double factor = field.NonNegativeNumber();
  if (factor < 1) field.Fail("a number of at least 1");
  return factor;
}

graph::ByKind<double> ReadFactors(const JsonField& field) {
  if (!field.Has("factors")) {
    return EqualFactors(ReadFactor(field.Get("factor")));
  }
  graph::ByKind<double> factors = {};
  for (size_t k = 0; k < graph::kOperatorKinds; ++k) {
    const auto name = ToString(static_cast<graph::OperatorKind>(k));
    factors[k] = ReadFactor(field.Get("factors").Get(name));
  }
  return factors;
}

}  // namespace

TimesOff TimesOffFromJson(const JsonField& field) {
  TimesOff times_off{
      .factors = ReadFactors(field),
      .by_kind = ReadBounds(field.Get("by_kind")),
      .by_operator = ReadBounds(field.Get("by_operator")),
      .least_step = graph::Optional(field, "least_step", ReadNumber)};
  if (!field.Has("worst_kinds")) return times_off;
  const JsonField ratios = field.Get("worst_kinds");
  times_off.worst_kinds.emplace();
  for (size_t k = 0; k < graph::kOperatorKinds; ++k) {
    const std::string name(ToString(static_cast<graph::OperatorKind>(k)));
    if (!ratios.Has(name)) continue;
    (*times_off.worst_kinds)[k] = ratios.Get(name).NonNegativeNumber();
  }
  return times_off;
}

Json ToJson(const TimesOff& times_off) {
  Json json = {{"factor", LargestOf(times_off.factors)}};
  if (!AreEqual(times_off.factors)) {
    for (size_t k = 0; k < graph::kOperatorKinds; ++k) {
      const auto name = ToString(static_cast<graph::OperatorKind>(k));
      json["factors"][std::string(name)] = times_off.factors[k];
    }
  }
  json["by_kind"] = ToJson(times_off.by_kind);
  json["by_operator"] = ToJson(times_off.by_operator);
  if (times_off.worst_kinds) {
    json["worst_kinds"] = Json::object();
    for (size_t k = 0; k < graph::kOperatorKinds; ++k) {
      const double ratio = (*times_off.worst_kinds)[k];
      if (ratio <= 0) continue;
      const auto name = ToString(static_cast<graph::OperatorKind>(k));
      json["worst_kinds"][std::string(name)] = ratio;
    }
  }
  if (times_off.least_step) json["least_step"] = *times_off.least_step;
  return json;
}

}  // namespace acplan::problems
