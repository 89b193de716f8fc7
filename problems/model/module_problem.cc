#include "problems/model/module_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "graph/profile/sac_statistics.h"
#include "graph/profile/tradeoff_curve.h"
#include "problems/model/unit_forest.h"

namespace acplan::problems {

using graph::Module;
using graph::ModuleTree;
using graph::Profile;
using graph::TradeoffFit;

namespace {

bool IsUsable(const TradeoffFit& fit) {
  const auto has_value = [](const std::optional<double>& v) {
    return v.has_value();
  };
  return !fit.slopes.empty() && std::ranges::all_of(fit.slopes, has_value) &&
         std::ranges::all_of(fit.intercepts, has_value);
}

bool IsConvex(const TradeoffFit& fit) {
  return std::ranges::is_sorted(fit.slopes);
}

std::vector<Knot> NetOfHeldBytes(const std::vector<Knot>& curve,
                                 double held_bytes) {
  if (held_bytes <= 0) return curve;
  std::vector<Knot> net;
  for (size_t k = 0; k < curve.size(); ++k) {
    const Knot knot{curve[k].bytes - held_bytes, curve[k].ms};
    if (knot.bytes >= 0) {
      if (k > 0 && net.empty() && knot.bytes > 0) {
        const Knot& before = curve[k - 1];
        const double share =
            (held_bytes - before.bytes) / (curve[k].bytes - before.bytes);
        net.push_back({0, before.ms + share * (knot.ms - before.ms)});
      }
      net.push_back(knot);
    }
  }
  if (!net.empty() && net.back().bytes <= 0) net.clear();
  return net;
}

// Returns the fit to use for a module. If there is no usable fit, adds a
// warning and returns nothing.
std::optional<TradeoffFit> FitOf(const Module& module, bool fit_anew,
                                 WarningsByType& warnings) {
  std::optional<TradeoffFit> fit = module.torch_fit;
  if (fit_anew) {
    fit.reset();
    if (module.sac) fit = graph::FitTradeoff(*module.sac);
  }
  if (fit && IsUsable(*fit)) return fit;
  if (module.act_fw_per_module > 0) {
    warnings.Add(module.fqn,
                 fit_anew ? "no operator statistics, so it cannot be an AC unit"
                          : "no usable trade-off fit, so it cannot be an AC "
                            "unit at module granularity");
  }
  return std::nullopt;
}

void WarnOf(const Module& module, const TradeoffFit& fit,
            WarningsByType& warnings) {
  if (fit.sac_memory < module.act_fw_per_module) {
    warnings.Add(module.fqn,
                 "SAC memory is below the activation memory, which is used "
                 "instead",
                 fmt::format(" ({} < {} bytes)", fit.sac_memory,
                             module.act_fw_per_module));
  }
  if (!IsConvex(fit)) {
    warnings.Add(module.fqn,
                 "the trade-off fit is not convex; the maximum of its segments "
                 "is used");
  }
}

UnitScale ScaleOf(const Module& module, const TradeoffFit& fit,
                  MemoryModel model) {
  UnitScale scale;
  scale.internal_bytes = static_cast<double>(module.act_fw_per_module);
  scale.sac_bytes =
      std::max(static_cast<double>(fit.sac_memory), scale.internal_bytes);
  if (model != MemoryModel::kTorch) {
    scale.held_bytes = static_cast<double>(module.held_per_module);
  }
  return scale;
}

// Returns the fit's segments in terms of discarded bytes: ms a byte, and ms at
// 0.
std::vector<std::pair<double, double>> LinesOf(const TradeoffFit& fit,
                                               const UnitScale& scale) {
  std::vector<std::pair<double, double>> lines;
  for (size_t s = 0; s < fit.slopes.size(); ++s) {
    const double slope = fit.sac_runtime * *fit.slopes[s];
    const double intercept = fit.sac_runtime * *fit.intercepts[s];
    lines.emplace_back(
        slope / scale.sac_bytes,
        intercept +
            slope * (scale.sac_bytes - scale.internal_bytes) / scale.sac_bytes);
  }
  return lines;
}

}  // namespace

double CurveCost(const std::vector<Knot>& curve, double net_bytes) {
  if (net_bytes > curve.back().bytes) {
    return std::numeric_limits<double>::infinity();
  }
  const auto after =
      std::ranges::lower_bound(curve, net_bytes, {}, &Knot::bytes);
  if (after == curve.begin()) return after->ms;
  const Knot& right_knot = *after;
  const Knot& left_knot = *std::prev(after);
  const double share =
      (net_bytes - left_knot.bytes) / (right_knot.bytes - left_knot.bytes);
  return left_knot.ms + share * (right_knot.ms - left_knot.ms);
}

std::vector<Knot> CurveOfLines(std::vector<std::pair<double, double>> lines,
                               double most_bytes) {
  lines.emplace_back(0.0, 0.0);
  std::ranges::sort(lines);
  struct EnvelopeLine {
    double slope, at_zero, from;
  };
  std::vector<EnvelopeLine> envelope;
  for (const auto& [slope, at_zero] : lines) {
    double from = -std::numeric_limits<double>::infinity();
    while (!envelope.empty()) {
      const EnvelopeLine& last = envelope.back();
      if (slope == last.slope) {
        envelope.pop_back();
        continue;
      }
      from = (last.at_zero - at_zero) / (slope - last.slope);
      if (from > last.from) break;
      envelope.pop_back();
    }
    if (envelope.empty()) from = -std::numeric_limits<double>::infinity();
    envelope.push_back({slope, at_zero, from});
  }
  const auto cost = [&](double bytes) {
    const EnvelopeLine& e = *std::prev(
        std::ranges::upper_bound(envelope, bytes, {}, &EnvelopeLine::from));
    return std::max(0.0, e.at_zero + e.slope * bytes);
  };
  std::vector<Knot> knots;
  const auto add = [&](double bytes) {
    const double ms = cost(bytes);
    while (!knots.empty() &&
           (knots.back().ms >= ms || knots.back().bytes >= bytes)) {
      knots.pop_back();
    }
    knots.push_back({bytes, ms});
  };
  add(0);
  for (const EnvelopeLine& e : envelope) {
    if (e.from > 0 && e.from < most_bytes) add(e.from);
  }
  add(most_bytes);
  return knots;
}

BuiltModuleProblem BuildModuleProblem(const Profile& profile,
                                      const ModuleTree& tree,
                                      const ModuleProblemOptions& options) {
  BuiltModuleProblem built_problem;
  UnitForest forest = BuildUnitForest(profile, tree, options);
  built_problem.problem = std::move(forest.problem);
  built_problem.scales.resize(tree.size());
  for (int i = 0; i < tree.size(); ++i) {
    if (!forest.may_be_unit[i]) continue;
    const Module& module = profile.modules[tree.node(i).module];
    const std::optional<TradeoffFit> fit =
        FitOf(module, options.fit_anew, forest.by_type);
    if (!fit) continue;
    WarnOf(module, *fit, forest.by_type);
    const UnitScale scale = ScaleOf(module, *fit, options.memory.model);
    built_problem.scales[i] = scale;
    double most_bytes = scale.internal_bytes;
    if (options.bound_by_forced_saves && module.sac) {
      most_bytes -= static_cast<double>(graph::ForcedSavedBytes(*module.sac));
    }
    if (most_bytes <= scale.held_bytes) continue;
    ModuleProblem::Node& node = built_problem.problem.nodes[i];
    node.held_bytes = scale.held_bytes;
    node.curve = NetOfHeldBytes(CurveOfLines(LinesOf(*fit, scale), most_bytes),
                                scale.held_bytes);
  }
  DropUselessLimit(built_problem.problem);
  built_problem.warnings = forest.Warnings();
  return built_problem;
}

}  // namespace acplan::problems
