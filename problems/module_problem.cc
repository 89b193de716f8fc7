#include "problems/module_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "graph/sac_statistics.h"

namespace acplan::problems {

using graph::Module;
using graph::ModuleTree;
using graph::Profile;
using graph::TradeoffFit;

namespace {

// "GPT.h.3.attn" -> "GPT.h.*.attn": modules of one type share it.
std::string TypeName(const std::string& fqn) {
  std::string type;
  size_t begin = 0;
  while (begin <= fqn.size()) {
    const size_t end = std::min(fqn.find('.', begin), fqn.size());
    const std::string component = fqn.substr(begin, end - begin);
    const bool number =
        !component.empty() && std::ranges::all_of(component, [](char c) {
          return c >= '0' && c <= '9';
        });
    type += (begin == 0 ? "" : ".") + (number ? "*" : component);
    begin = end + 1;
  }
  return type;
}

// One warning a module type and kind of complaint, with the number of modules
// it speaks of and the details of the first.
class WarningsByType {
 public:
  void Add(const std::string& fqn, const std::string& kind,
           const std::string& details = "") {
    const auto [it, is_new] =
        index_.try_emplace({TypeName(fqn), kind}, entries_.size());
    if (is_new) entries_.push_back({fqn, it->first.first, kind + details, 0});
    ++entries_[it->second].modules;
  }

  std::vector<std::string> Lines() const {
    std::vector<std::string> lines;
    for (const Entry& e : entries_) {
      lines.push_back(e.modules == 1 ? fmt::format("{}: {}", e.fqn, e.text)
                                     : fmt::format("{} ({} modules): {}",
                                                   e.type, e.modules, e.text));
    }
    return lines;
  }

 private:
  struct Entry {
    std::string fqn, type, text;
    int modules;
  };
  std::map<std::pair<std::string, std::string>, size_t> index_;
  std::vector<Entry> entries_;
};

bool IsUsable(const TradeoffFit& fit) {
  const auto given = [](const std::optional<double>& v) {
    return v.has_value();
  };
  return !fit.slopes.empty() && std::ranges::all_of(fit.slopes, given) &&
         std::ranges::all_of(fit.intercepts, given);
}

bool IsConvex(const TradeoffFit& fit) {
  return std::ranges::is_sorted(fit.slopes);
}

struct Restriction {
  std::vector<char> allowed;  // a node: may it be a unit?
  std::vector<std::string> warnings;
};

Restriction RestrictUnits(const Profile& profile, const ModuleTree& tree,
                          const ModuleProblemOptions& options) {
  const std::vector<int> ac_units =
      graph::FindModules(profile, tree, options.ac_units, "--ac-units");
  const std::vector<int> fsdp_units =
      graph::FindModules(profile, tree, options.fsdp_units, "--fsdp-units");
  Restriction result;
  std::vector<char>& allowed = result.allowed;
  allowed.assign(tree.size(), ac_units.empty() ? 1 : 0);
  for (const int i : ac_units) allowed[i] = 1;
  std::vector<char> above_fsdp(tree.size(), 0);
  for (const int unit : fsdp_units) {
    for (int i = tree.node(unit).parent; i >= 0 && !above_fsdp[i];
         i = tree.node(i).parent) {
      above_fsdp[i] = 1;
    }
  }
  for (const int i : ac_units) {
    const Module& module = profile.modules[tree.node(i).module];
    if (module.is_leaf) {
      result.warnings.push_back(fmt::format(
          "--ac-units: {} is a leaf; leaves are never AC units", module.fqn));
    } else if (module.calls == 0) {
      result.warnings.push_back(fmt::format(
          "--ac-units: {} is never called, so it is no AC unit", module.fqn));
    } else if (above_fsdp[i]) {
      result.warnings.push_back(fmt::format(
          "--ac-units: {} contains an FSDP unit, so it is no AC unit",
          module.fqn));
    }
  }
  for (int i = 0; i < tree.size(); ++i) {
    if (above_fsdp[i]) allowed[i] = 0;
  }
  return result;
}

bool AddsUp(const Module& module) {
  const auto adds_up = [](const std::optional<graph::MemorySnapshot>& s) {
    return !s || std::accumulate(s->begin(), s->begin() + graph::kTotal,
                                 int64_t{0}) == (*s)[graph::kTotal];
  };
  return !module.snap ||
         (adds_up(module.snap->peak_fw) && adds_up(module.snap->peak_bw));
}

std::vector<Knot> NetOfHeldBytes(const std::vector<Knot>& curve, double held) {
  if (held <= 0) return curve;
  std::vector<Knot> net;
  for (size_t k = 0; k < curve.size(); ++k) {
    const Knot knot{curve[k].bytes - held, curve[k].ms};
    if (knot.bytes >= 0) {
      if (k > 0 && net.empty() && knot.bytes > 0) {
        const Knot& before = curve[k - 1];
        const double share =
            (held - before.bytes) / (curve[k].bytes - before.bytes);
        net.push_back({0, before.ms + share * (knot.ms - before.ms)});
      }
      net.push_back(knot);
    }
  }
  if (!net.empty() && net.back().bytes <= 0) net.clear();
  return net;
}

// The most candidates of which none contains another.
int MostUnits(const ModuleProblem& problem) {
  const int n = static_cast<int>(problem.nodes.size());
  std::vector<int> most(n, 0);
  int total = 0;
  for (int i = n - 1; i >= 0; --i) {
    for (int c = i + 1; c < i + problem.nodes[i].subtree_size;
         c += problem.nodes[c].subtree_size) {
      most[i] += most[c];
    }
    if (most[i] == 0 && !problem.nodes[i].curve.empty()) most[i] = 1;
  }
  for (int i = 0; i < n; i += problem.nodes[i].subtree_size) total += most[i];
  return total;
}

}  // namespace

double CurveCost(const std::vector<Knot>& curve, double net_bytes) {
  if (net_bytes > curve.back().bytes) {
    return std::numeric_limits<double>::infinity();
  }
  const auto after =
      std::ranges::lower_bound(curve, net_bytes, {}, &Knot::bytes);
  if (after == curve.begin()) return after->ms;
  const Knot& right = *after;
  const Knot& left = *std::prev(after);
  const double share = (net_bytes - left.bytes) / (right.bytes - left.bytes);
  return left.ms + share * (right.ms - left.ms);
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
  BuiltModuleProblem built;
  ModuleProblem& problem = built.problem;
  problem.budget_bytes = options.budget_bytes;
  problem.max_units = options.max_units;
  problem.prefix_structure = tree.PostOrderMatchesTree();
  problem.nodes.resize(tree.size());
  built.scales.resize(tree.size());
  for (const MemoryRecord& record :
       MemoryRecords(profile, tree, options.memory)) {
    if (record.node < 0) {
      problem.fixed_bytes = std::max(problem.fixed_bytes, record.base_bytes);
    } else {
      problem.nodes[record.node].base_bytes = record.base_bytes;
    }
  }

  Restriction restriction = RestrictUnits(profile, tree, options);
  built.warnings = std::move(restriction.warnings);
  WarningsByType by_type;
  for (int i = 0; i < tree.size(); ++i) {
    const Module& module = profile.modules[tree.node(i).module];
    ModuleProblem::Node& node = problem.nodes[i];
    node.subtree_size = tree.node(i).subtree_size;
    node.time = tree.node(i).fw_post;
    if (options.memory.model == MemoryModel::kSnapshot && node.time >= 0 &&
        !AddsUp(module)) {
      by_type.Add(module.fqn,
                  "a snapshot's total is not the sum of its categories; the "
                  "sum is used");
    }
    if (module.is_leaf || node.time < 0 || !restriction.allowed[i]) {
      continue;
    }
    if (!module.torch_fit || !IsUsable(*module.torch_fit)) {
      if (module.act_fw_per_module > 0) {
        by_type.Add(module.fqn,
                    "no usable trade-off fit, so it is no AC unit at module "
                    "granularity");
      }
      continue;
    }
    const TradeoffFit& fit = *module.torch_fit;
    if (fit.sac_memory < module.act_fw_per_module) {
      by_type.Add(module.fqn,
                  "SAC memory is below the activation memory, which is used "
                  "instead",
                  fmt::format(" ({} < {} bytes)", fit.sac_memory,
                              module.act_fw_per_module));
    }
    if (!IsConvex(fit)) {
      by_type.Add(
          module.fqn,
          "the trade-off fit is not convex; the maximum of its segments "
          "is used");
    }
    UnitScale& scale = built.scales[i];
    scale.internal_bytes = static_cast<double>(module.act_fw_per_module);
    scale.sac_bytes =
        std::max(static_cast<double>(fit.sac_memory), scale.internal_bytes);
    if (options.memory.model == MemoryModel::kSnapshot) {
      scale.held_bytes = static_cast<double>(module.held_per_module);
    }
    double most_bytes = scale.internal_bytes;
    if (options.bound_by_forced_saves && module.sac) {
      most_bytes -= static_cast<double>(graph::ForcedSavedBytes(*module.sac));
    }
    if (most_bytes <= scale.held_bytes) continue;

    std::vector<std::pair<double, double>> lines;
    for (size_t s = 0; s < fit.slopes.size(); ++s) {
      const double slope = fit.sac_runtime * *fit.slopes[s];
      const double intercept = fit.sac_runtime * *fit.intercepts[s];
      lines.emplace_back(
          slope / scale.sac_bytes,
          intercept + slope * (scale.sac_bytes - scale.internal_bytes) /
                          scale.sac_bytes);
    }
    node.held_bytes = scale.held_bytes;
    node.curve = NetOfHeldBytes(CurveOfLines(std::move(lines), most_bytes),
                                scale.held_bytes);
  }
  // A limit that no set of units can exceed is none.
  if (problem.max_units && *problem.max_units >= MostUnits(problem)) {
    problem.max_units.reset();
  }
  for (std::string& line : by_type.Lines()) {
    built.warnings.push_back(std::move(line));
  }
  return built;
}

}  // namespace acplan::problems
