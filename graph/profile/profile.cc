#include "graph/profile/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"
#include "graph/base/number_limits.h"
#include "graph/profile/model_json.h"

namespace acplan::graph {
namespace {

constexpr std::string_view kFormat = "acplan.profile";
constexpr int kVersion = 1;
constexpr std::array<std::string_view, kMemoryCategories> kCategoryNames = {
    "param", "buffer", "grad", "act", "temp", "opt", "other", "total"};
constexpr int64_t kMostCalls = 1'000'000'000;
constexpr int64_t kMostSegments = 1'000'000;

using ModuleIndex = std::unordered_map<std::string_view, int>;

std::optional<int64_t> OptionalBytes(const JsonField& object,
                                     std::string_view key) {
  return Optional(object, key, [](const JsonField& f) { return f.Bytes(); });
}

MemorySnapshot ParseNamedSnapshot(const JsonField& field) {
  MemorySnapshot snapshot = {};
  for (size_t i = 0; i < snapshot.size(); ++i)
    snapshot[i] = field.Get(kCategoryNames[i]).Bytes();
  return snapshot;
}

Measured ParseMeasured(const JsonField& field) {
  return {.peak_bytes = OptionalBytes(field, "peak_bytes"),
          .opt_step_peak_bytes = OptionalBytes(field, "opt_step_peak_bytes"),
          .opt_step_peak_categories =
              Optional(field, "opt_step_peak_categories", ParseNamedSnapshot),
          .param_bytes = OptionalBytes(field, "param_bytes"),
          .grad_bytes = OptionalBytes(field, "grad_bytes"),
          .optimizer_bytes = OptionalBytes(field, "optimizer_bytes"),
          .buffer_bytes = OptionalBytes(field, "buffer_bytes"),
          .input_bytes = OptionalBytes(field, "input_bytes")};
}

MemorySnapshot ParseSnapshot(const JsonField& field) {
  MemorySnapshot snapshot = {};
  const std::vector<JsonField> elements = field.Elements();
  if (elements.size() != snapshot.size())
    field.Fail(fmt::format("{} entries ({})", snapshot.size(),
                           fmt::join(kCategoryNames, ", ")));
  for (size_t i = 0; i < snapshot.size(); ++i)
    snapshot[i] = elements[i].Bytes();
  return snapshot;
}

ModuleSnapshots ParseSnapshots(const JsonField& field) {
  return {.pre_fw = Optional(field, "pre_fw", ParseSnapshot),
          .post_fw = Optional(field, "post_fw", ParseSnapshot),
          .peak_fw = Optional(field, "peak_fw", ParseSnapshot),
          .pre_bw = Optional(field, "pre_bw", ParseSnapshot),
          .post_bw = Optional(field, "post_bw", ParseSnapshot),
          .peak_bw = Optional(field, "peak_bw", ParseSnapshot)};
}

void ExpectEntries(const JsonField& field, size_t actual, size_t expected,
                   std::string_view why) {
  if (actual != expected)
    field.Complain(fmt::format("expected {} entries, {}, found {}", expected,
                               why, actual));
}

int ParseOperator(const JsonField& field, size_t operators) {
  if (operators == 0) field.Fail("no entry, as there are no operators");
  return static_cast<int>(field.Int(0, static_cast<int64_t>(operators) - 1));
}

std::vector<int> ParseOperators(const JsonField& field, size_t operators) {
  std::vector<int> indices;
  for (const JsonField& element : field.Elements())
    indices.push_back(ParseOperator(element, operators));
  return indices;
}

std::vector<int> ParseDistinctOperators(const JsonField& field,
                                        size_t operators) {
  std::vector<int> indices;
  std::vector<bool> is_listed(operators, false);
  for (const JsonField& element : field.Elements()) {
    const int index = ParseOperator(element, operators);
    if (is_listed[index]) element.Fail("an operator that is not listed before");
    is_listed[index] = true;
    indices.push_back(index);
  }
  return indices;
}

SacStatistics ParseSac(const JsonField& field) {
  SacStatistics sac;
  sac.func_names = field.Get("func_names").Strings();
  const size_t n = sac.func_names.size();
  constexpr std::string_view kWhy = "one for each of func_names";

  const JsonField runtimes = field.Get("runtimes");
  for (const JsonField& element : runtimes.Elements())
    sac.runtimes.push_back(element.NonNegativeNumber());
  ExpectEntries(runtimes, sac.runtimes.size(), n, kWhy);

  const JsonField memory = field.Get("memory");
  int64_t total = 0;
  for (const JsonField& element : memory.Elements()) {
    sac.memory.push_back(element.Bytes());
    total += sac.memory.back();
    if (total > kMostExactInteger)
      memory.Complain("expected at most 2^53 bytes in all, found more");
  }
  ExpectEntries(memory, sac.memory.size(), n, kWhy);

  sac.view_like_ops = ParseDistinctOperators(field.Get("view_like_ops"), n);
  sac.rand_ops = ParseDistinctOperators(field.Get("rand_ops"), n);
  sac.saved_autograd_ops = ParseOperators(field.Get("saved_autograd_ops"), n);
  for (const JsonField& element : field.Get("inplace_ops").Elements()) {
    const std::vector<JsonField> pair = element.Elements();
    if (pair.size() != 2) element.Fail("a pair [operator, parent]");
    sac.inplace_ops.emplace_back(ParseOperator(pair[0], n),
                                 ParseOperator(pair[1], n));
  }
  sac.force_store_random = field.Get("force_store_random").Bool();
  return sac;
}

std::vector<std::optional<double>> ParseFitNumbers(const JsonField& fit,
                                                   std::string_view key,
                                                   size_t expected,
                                                   std::string_view why) {
  std::vector<std::optional<double>> numbers;
  if (expected == 0 && !fit.Has(key)) return numbers;
  const JsonField field = fit.Get(key);
  for (const JsonField& element : field.Elements())
    numbers.push_back(element.IsNull()
                          ? std::nullopt
                          : std::optional<double>(element.Number()));
  ExpectEntries(field, numbers.size(), expected, why);
  return numbers;
}

using Curve = std::vector<std::pair<double, double>>;

// Parses a key that is a number: all keys of JSON are strings.
double ParseNumberKey(const JsonField& object, const std::string& key) {
  double number = 0;
  const char* const end = key.data() + key.size();
  const auto [last, error] = std::from_chars(key.data(), end, number);
  if (error != std::errc() || last != end || !(std::abs(number) <= kMostNumber))
    object.Complain(
        fmt::format("expected keys that are numbers, -1e18 to 1e18, found {}",
                    Quoted(key)));
  return number;
}

Curve ParseTradeoffCurve(const JsonField& field) {
  Curve curve;
  if (field.json().is_object()) {
    for (const auto& [key, unused] : field.json().items()) {
      const double discarded = ParseNumberKey(field, key);
      curve.emplace_back(discarded, field.Get(key).Number());
    }
    std::ranges::sort(curve);
    return curve;
  }
  for (const JsonField& element : field.Elements()) {
    const std::vector<JsonField> point = element.Elements();
    if (point.size() != 2) element.Fail("a pair [discarded, recomputed]");
    curve.emplace_back(point[0].Number(), point[1].Number());
  }
  return curve;
}

TradeoffFit ParseTorchFit(const JsonField& field) {
  TradeoffFit fit;
  fit.sac_runtime = field.Get("sac_runtime").NonNegativeNumber();
  fit.sac_memory = field.Get("sac_memory").Bytes();
  fit.n_segments =
      static_cast<int>(field.Get("n_segments").Int(0, kMostSegments));
  const size_t n = static_cast<size_t>(fit.n_segments);
  fit.slopes = ParseFitNumbers(field, "slopes", n, "one a segment");
  fit.intercepts = ParseFitNumbers(field, "intercepts", n, "one a segment");
  fit.breakpoints = ParseFitNumbers(field, "breakpoints", n == 0 ? 0 : n + 1,
                                    "one more than segments");
  fit.tradeoff_curve =
      Optional(field, "tradeoff_curve", ParseTradeoffCurve).value_or(Curve());
  return fit;
}

// Reads the fields that a profile's module and torch's ModStats have in common.
Module ParseCosts(const JsonField& field) {
  Module module;
  module.fqn = ParseFqn(field.Get("fqn"));
  module.is_leaf = field.Get("is_leaf").Bool();
  module.param_per_module = field.Get("param_per_module").Bytes();
  module.grad_per_module = field.Get("grad_per_module").Bytes();
  module.grad_total = field.Get("grad_total").Bytes();
  module.act_fw_per_module = field.Get("act_fw_per_module").Bytes();
  module.act_bw_per_module = field.Get("act_bw_per_module").Bytes();
  module.act_grad_per_module = field.Get("act_grad_per_module").SignedBytes();
  module.act_total = field.Get("act_total").Bytes();
  module.input_per_module = field.Get("input_per_module").Bytes();
  module.output_per_module = field.Get("output_per_module").Bytes();
  module.fw_runtime_per_module =
      field.Get("fw_runtime_per_module").NonNegativeNumber();
  module.bw_runtime_per_module =
      field.Get("bw_runtime_per_module").NonNegativeNumber();
  return module;
}

Module ParseModule(const JsonField& field) {
  Module module = ParseCosts(field);
  module.buffer_per_module =
      OptionalBytes(field, "buffer_per_module").value_or(0);
  module.held_per_module = OptionalBytes(field, "held_per_module").value_or(0);
  if (field.Has("calls"))
    module.calls = static_cast<int>(field.Get("calls").Int(0, kMostCalls));
  if (field.Has("no_backward"))
    module.no_backward = field.Get("no_backward").Bool();
  module.snap = Optional(field, "snap", ParseSnapshots);
  module.sac = Optional(field, "sac", ParseSac);
  module.torch_fit = Optional(field, "torch_fit", ParseTorchFit);
  return module;
}

Module ParseModStats(const JsonField& field) {
  Module module = ParseCosts(field);
  if (!module.is_leaf) module.torch_fit = ParseTorchFit(field);
  return module;
}

std::string DidYouMean(std::string_view name,
                       const std::vector<Module>& modules) {
  std::vector<std::string> names;
  names.reserve(modules.size());
  for (const Module& module : modules) names.push_back(module.fqn);
  std::vector<std::string> near;
  for (const std::string& near_name : NearestNames(name, names))
    near.push_back(Quoted(near_name));
  if (near.empty()) return "";
  return fmt::format("; did you mean {}?", fmt::join(near, " or "));
}

std::vector<std::string> ParseOrder(const JsonField& field,
                                    const std::vector<Module>& modules,
                                    const ModuleIndex& index,
                                    std::string_view list, bool is_forward) {
  std::vector<std::string> order;
  std::vector<bool> is_listed(modules.size(), false);
  for (const JsonField& element : field.Elements()) {
    std::string fqn = element.String();
    const auto module = index.find(fqn);
    if (module == index.end())
      element.Complain(fmt::format("expected the name of a module, found {}{}",
                                   Quoted(fqn), DidYouMean(fqn, modules)));
    if (is_listed[module->second])
      element.Fail("a module that is not listed before");
    is_listed[module->second] = true;
    order.push_back(std::move(fqn));
  }
  if (!is_forward) return order;
  for (size_t i = 0; i < modules.size(); ++i)
    if (!is_listed[i] && modules[i].calls > 0)
      field.Complain(
          fmt::format("expected every module with calls above 0, found no {} "
                      "({}[{}])",
                      Quoted(modules[i].fqn), list, i));
  return order;
}

ModuleIndex IndexModules(const JsonField& field,
                         const std::vector<Module>& modules,
                         std::string_view list) {
  std::vector<std::string_view> fqns;
  fqns.reserve(modules.size());
  for (const Module& module : modules) fqns.push_back(module.fqn);
  return IndexFqns(field, fqns, list);
}

// The keys under which a file has its modules and their orders.
struct Layout {
  std::string_view modules;
  Module (*parse)(const JsonField&);
  std::string_view order, fw_pre, bw_pre, fw_post, bw_post;
};
constexpr Layout kOwnLayout = {"modules", ParseModule, "order",  "fw_pre",
                               "bw_pre",  "fw_post",   "bw_post"};
constexpr Layout kTorchLayout = {
    "mod_stats",    ParseModStats,   "mod_order",    "fw_pre_order",
    "bw_pre_order", "fw_post_order", "bw_post_order"};

bool IsModuleInfo(const JsonField& root) {
  return !root.Has("format") && root.Has(kTorchLayout.order) &&
         root.Has(kTorchLayout.modules);
}

std::vector<Module> ParseModules(const JsonField& root, const Layout& layout) {
  std::vector<Module> modules;
  const JsonField field = root.Get(layout.modules);
  for (const JsonField& element : field.Elements())
    modules.push_back(layout.parse(element));
  if (modules.empty()) field.Fail("at least one module");

  int64_t total = 0;
  for (const Module& m : modules) {
    for (int64_t bytes :
         {m.param_per_module, m.grad_per_module, m.act_fw_per_module,
          m.buffer_per_module, m.held_per_module}) {
      if (total > kMostTotalBytes - bytes)
        field.Complain("expected at most 2^62 bytes in all, found more");
      total += bytes;
    }
  }
  return modules;
}

using Json = nlohmann::ordered_json;

Json SnapshotJson(const std::optional<MemorySnapshot>& snapshot) {
  return snapshot ? Json(*snapshot) : Json();
}

template <typename T>
void PutIfSet(Json& object, std::string_view key,
              const std::optional<T>& value) {
  if (value) object[std::string(key)] = *value;
}

Json FitNumbersJson(const std::vector<std::optional<double>>& numbers) {
  Json array = Json::array();
  for (const std::optional<double>& number : numbers)
    array.push_back(number ? Json(*number) : Json());
  return array;
}

Json ModuleJson(const Module& m) {
  Json json = {{"fqn", m.fqn},
               {"is_leaf", m.is_leaf},
               {"param_per_module", m.param_per_module},
               {"grad_per_module", m.grad_per_module},
               {"grad_total", m.grad_total},
               {"act_fw_per_module", m.act_fw_per_module},
               {"act_bw_per_module", m.act_bw_per_module},
               {"act_grad_per_module", m.act_grad_per_module},
               {"act_total", m.act_total},
               {"input_per_module", m.input_per_module},
               {"output_per_module", m.output_per_module},
               {"fw_runtime_per_module", m.fw_runtime_per_module},
               {"bw_runtime_per_module", m.bw_runtime_per_module},
               {"buffer_per_module", m.buffer_per_module}};
  if (m.held_per_module != 0) json["held_per_module"] = m.held_per_module;
  json["calls"] = m.calls;
  json["no_backward"] = m.no_backward;
  if (m.snap)
    json["snap"] = {{"pre_fw", SnapshotJson(m.snap->pre_fw)},
                    {"post_fw", SnapshotJson(m.snap->post_fw)},
                    {"peak_fw", SnapshotJson(m.snap->peak_fw)},
                    {"pre_bw", SnapshotJson(m.snap->pre_bw)},
                    {"post_bw", SnapshotJson(m.snap->post_bw)},
                    {"peak_bw", SnapshotJson(m.snap->peak_bw)}};
  if (m.sac)
    json["sac"] = {{"func_names", m.sac->func_names},
                   {"runtimes", m.sac->runtimes},
                   {"memory", m.sac->memory},
                   {"view_like_ops", m.sac->view_like_ops},
                   {"rand_ops", m.sac->rand_ops},
                   {"saved_autograd_ops", m.sac->saved_autograd_ops},
                   {"inplace_ops", m.sac->inplace_ops},
                   {"force_store_random", m.sac->force_store_random}};
  if (m.torch_fit)
    json["torch_fit"] = {
        {"sac_runtime", m.torch_fit->sac_runtime},
        {"sac_memory", m.torch_fit->sac_memory},
        {"n_segments", m.torch_fit->n_segments},
        {"slopes", FitNumbersJson(m.torch_fit->slopes)},
        {"intercepts", FitNumbersJson(m.torch_fit->intercepts)},
        {"breakpoints", FitNumbersJson(m.torch_fit->breakpoints)},
        {"tradeoff_curve", m.torch_fit->tradeoff_curve}};
  return json;
}

Json MeasuredJson(const Measured& measured) {
  Json json = Json::object();
  PutIfSet(json, "peak_bytes", measured.peak_bytes);
  PutIfSet(json, "opt_step_peak_bytes", measured.opt_step_peak_bytes);
  if (measured.opt_step_peak_categories)
    for (size_t i = 0; i < kCategoryNames.size(); ++i)
      json["opt_step_peak_categories"][std::string(kCategoryNames[i])] =
          (*measured.opt_step_peak_categories)[i];
  PutIfSet(json, "param_bytes", measured.param_bytes);
  PutIfSet(json, "grad_bytes", measured.grad_bytes);
  PutIfSet(json, "optimizer_bytes", measured.optimizer_bytes);
  PutIfSet(json, "buffer_bytes", measured.buffer_bytes);
  PutIfSet(json, "input_bytes", measured.input_bytes);
  return json;
}

}  // namespace

Profile ReadProfile(const std::filesystem::path& path) {
  return ParseProfile(ReadJsonText(path), path.string());
}

Profile ParseProfile(std::string_view text, std::string_view name) {
  const nlohmann::json document = ParseJson(text, name);
  const JsonField root(document, std::string(name));
  const bool is_module_info = IsModuleInfo(root);
  const Layout& layout = is_module_info ? kTorchLayout : kOwnLayout;
  if (!is_module_info) RequireFormat(root, kFormat, kVersion);

  Profile profile;
  profile.model = Optional(root, "model", ParseModelInfo).value_or(ModelInfo());
  profile.device =
      Optional(root, "device", ParseDeviceInfo).value_or(DeviceInfo());
  profile.measured =
      Optional(root, "measured", ParseMeasured).value_or(Measured());
  profile.modules = ParseModules(root, layout);
  const ModuleIndex index =
      IndexModules(root.Get(layout.modules), profile.modules, layout.modules);
  const JsonField order = root.Get(layout.order);
  auto parse_order = [&](std::string_view key, bool is_forward) {
    return ParseOrder(order.Get(key), profile.modules, index, layout.modules,
                      is_forward);
  };
  profile.order = {.fw_pre = parse_order(layout.fw_pre, true),
                   .bw_pre = parse_order(layout.bw_pre, false),
                   .fw_post = parse_order(layout.fw_post, true),
                   .bw_post = parse_order(layout.bw_post, false)};
  if (is_module_info && profile.model == ModelInfo())
    profile.model.name = profile.model.root_class =
        profile.order.fw_pre.front();
  return profile;
}

std::string ProfileToJson(const Profile& profile) {
  const Json order = {{"fw_pre", profile.order.fw_pre},
                      {"bw_pre", profile.order.bw_pre},
                      {"fw_post", profile.order.fw_post},
                      {"bw_post", profile.order.bw_post}};
  std::vector<std::string> modules;
  modules.reserve(profile.modules.size());
  for (const Module& module : profile.modules)
    modules.push_back(CompactText(ModuleJson(module)));
  return fmt::format(
      "{{\n\"format\":\"{}\",\n\"version\":{},\n\"model\":{},\n\"device\":{},\n"
      "\"measured\":{},\n\"order\":{},\n\"modules\":[\n{}\n]\n}}\n",
      kFormat, kVersion, CompactText(ModelInfoJson(profile.model)),
      CompactText(DeviceInfoJson(profile.device)),
      CompactText(MeasuredJson(profile.measured)), CompactText(order),
      fmt::join(modules, ",\n"));
}

}  // namespace acplan::graph
