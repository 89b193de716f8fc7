#include "problems/model/link_limits.h"

#include <nlohmann/json.hpp>

namespace acplan::problems {
namespace {

constexpr char kRate[] = "bytes_per_second";
constexpr char kRateBack[] = "back_bytes_per_second";

double ReadRate(const graph::JsonField& field) {
  const double rate = field.NonNegativeNumber();
  if (rate <= 0) field.Fail("a number above 0");
  return rate;
}

}  // namespace

graph::LinkRates ReadRates(const graph::JsonField& plan) {
  graph::LinkRates rates = graph::BothWays(ReadRate(plan.Get(kRate)));
  if (plan.Has(kRateBack)) rates.to_device = ReadRate(plan.Get(kRateBack));
  return rates;
}

nlohmann::ordered_json RatesJson(const graph::LinkRates& rates) {
  nlohmann::ordered_json json = {{kRate, rates.to_host}};
  if (rates.to_device != rates.to_host) json[kRateBack] = rates.to_device;
  return json;
}

}  // namespace acplan::problems
