#include "tests/problems/enumeration.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

namespace acplan::problems {

using graph::MemorySnapshot;
using graph::Module;
using graph::Profile;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

bool IsBelow(const std::string& name, const std::string& ancestor) {
  return name.starts_with(ancestor + ".");
}

// f at x.
using Cost = std::function<double(double)>;

// Returns the knots of min over d' >= d of f(d'), for a convex,
// piecewise-linear f on [0, most]: f without its falling part.
std::vector<Knot> RisingKnots(std::vector<double> breaks, double most,
                              const Cost& f) {
  std::erase_if(breaks, [&](double x) { return !(x > 0 && x < most); });
  breaks.push_back(0);
  breaks.push_back(most);
  std::ranges::sort(breaks);
  size_t first = 0;
  for (size_t k = 0; k < breaks.size(); ++k) {
    if (f(breaks[k]) <= f(breaks[first])) first = k;
  }
  std::vector<Knot> knots;
  for (size_t k = first; k < breaks.size(); ++k) {
    knots.push_back({breaks[k], f(breaks[k])});
  }
  return knots;
}

double Meeting(std::pair<double, double> a, std::pair<double, double> b) {
  return (b.second - a.second) / (a.first - b.first);
}

double SnapshotSum(const MemorySnapshot& s, const MemoryOptions& memory) {
  double sharded = 0;
  double rest = 0;
  for (int c = 0; c < graph::kTotal; ++c) {
    const bool is_state =
        c == graph::kOpt || c == graph::kBuffer || c == graph::kOther;
    if (is_state && memory.without_states) continue;
    const bool is_sharded =
        c == graph::kParam || c == graph::kGrad || c == graph::kOpt;
    (is_sharded ? sharded : rest) += static_cast<double>(s[c]);
  }
  return sharded / static_cast<double>(memory.world_size) + rest;
}

double RecordBytes(const Profile& profile, const Module& module,
                   const MemoryOptions& memory) {
  if (memory.model == MemoryModel::kSnapshot) {
    double bytes = SnapshotSum(*module.snap->peak_fw, memory);
    if (module.snap->peak_bw) {
      bytes = std::max(bytes, SnapshotSum(*module.snap->peak_bw, memory));
    }
    return bytes;
  }
  double sharded = static_cast<double>(module.grad_total);
  for (const Module& other : profile.modules) {
    const bool is_root = std::ranges::none_of(
        profile.modules,
        [&](const Module& m) { return IsBelow(other.fqn, m.fqn); });
    if (is_root) sharded += static_cast<double>(other.param_per_module);
  }
  return sharded / static_cast<double>(memory.world_size) +
         static_cast<double>(module.act_total) +
         static_cast<double>(module.act_grad_per_module);
}

double HeldBytes(const Module& module, const MemoryOptions& memory) {
  return memory.model == MemoryModel::kSnapshot
             ? static_cast<double>(module.held_per_module)
             : 0;
}

double FixedBytes(const Profile& profile, const MemoryOptions& memory) {
  if (memory.model == MemoryModel::kTorch || memory.without_states ||
      !profile.measured.opt_step_peak_categories) {
    return 0;
  }
  return SnapshotSum(*profile.measured.opt_step_peak_categories, memory);
}

// Returns the bytes of operators that every policy saves, from the rules as
// logical implications.
double ForcedBytes(const graph::SacStatistics& sac) {
  const int n = static_cast<int>(sac.memory.size());
  const auto is_in = [](const std::vector<int>& list, int k) {
    return std::ranges::find(list, k) != list.end();
  };
  std::vector<char> forced(n, 0);
  for (int round = 0; round <= n; ++round) {
    for (int k = 0; k < n; ++k) {
      if (is_in(sac.view_like_ops, k)) continue;
      if (is_in(sac.rand_ops, k) && sac.force_store_random) forced[k] = 1;
      for (const auto& [op, parent] : sac.inplace_ops) {
        if (op == k && parent == k) forced[k] = 1;
        if (op == k && forced[parent]) forced[k] = 1;
        if (parent == k && forced[op]) forced[k] = 1;
      }
      for (int other = 0; other < n; ++other) {
        if (is_in(sac.rand_ops, k) && is_in(sac.rand_ops, other) &&
            forced[other]) {
          forced[k] = 1;
        }
      }
    }
  }
  double bytes = 0;
  for (int k = 0; k < n; ++k) {
    if (forced[k]) bytes += static_cast<double>(sac.memory[k]);
  }
  return bytes;
}

double InternalBytes(const Module& module) {
  return static_cast<double>(module.act_fw_per_module);
}

double SacBytes(const Module& module) {
  return std::max(InternalBytes(module),
                  static_cast<double>(module.torch_fit->sac_memory));
}

double FitMs(const Module& module, double ratio) {
  double share = 0;
  for (size_t s = 0; s < module.torch_fit->slopes.size(); ++s) {
    share = std::max(share, *module.torch_fit->slopes[s] * ratio +
                                *module.torch_fit->intercepts[s]);
  }
  return module.torch_fit->sac_runtime * share;
}

bool HasFit(const Module& module) {
  if (!module.torch_fit || module.torch_fit->slopes.empty()) return false;
  for (size_t s = 0; s < module.torch_fit->slopes.size(); ++s) {
    if (!module.torch_fit->slopes[s] || !module.torch_fit->intercepts[s]) {
      return false;
    }
  }
  return true;
}

std::vector<Knot> UnitKnots(const Module& module, const MemoryOptions& memory) {
  const double internal = InternalBytes(module);
  const double sac = SacBytes(module);
  const double held_bytes = HeldBytes(module, memory);
  double most = internal;
  if (memory.model == MemoryModel::kSnapshot && module.sac) {
    most -= ForcedBytes(*module.sac);
  }
  if (most - held_bytes <= 0) return {};
  std::vector<std::pair<double, double>> lines = {{0, 0}};
  for (size_t s = 0; s < module.torch_fit->slopes.size(); ++s) {
    lines.emplace_back(*module.torch_fit->slopes[s],
                       *module.torch_fit->intercepts[s]);
  }
  std::vector<double> breaks;
  for (const auto& a : lines) {
    for (const auto& b : lines) {
      if (a.first == b.first) continue;
      breaks.push_back(sac * Meeting(a, b) - (sac - internal) - held_bytes);
    }
  }
  return RisingKnots(std::move(breaks), most - held_bytes, [&](double net) {
    return FitMs(module, (net + held_bytes + sac - internal) / sac);
  });
}

class SetSearch {
 public:
  explicit SetSearch(const Enumeration& problem) : problem_(problem) {}

  void ForEach(const std::function<void(const std::vector<int>&)>& use) {
    Extend(0, use);
  }

  // Returns, for each record, the bytes in use above the budget with these
  // units, with all of their knots discarded or only the first. (The difference
  // comes first: it is exact.)
  std::vector<double> Above(double budget, const std::vector<int>& set,
                            bool all) const {
    std::vector<double> above;
    for (size_t k = 0; k < problem_.records.size(); ++k) {
      double bytes = problem_.records[k].bytes - budget;
      for (const int u : set) {
        const Enumeration::Unit& unit = problem_.units[u];
        if (unit.time < problem_.records[k].time) {
          bytes -= all ? unit.knots.back().bytes : unit.knots.front().bytes;
        }
        if (unit.contains[k]) bytes += unit.held_bytes;
      }
      above.push_back(bytes);
    }
    return above;
  }

  double LeastMs(const std::vector<int>& set, double budget) const {
    double ms = 0;
    for (const int u : set) ms += problem_.units[u].knots.front().ms;
    const std::vector<double> above = Above(budget, set, false);
    std::vector<double> taken_bytes(set.size(), 0);
    for (size_t k = 0; k < above.size(); ++k) {
      double missing = above[k];
      for (const double t : taken_bytes) missing -= t;
      while (missing > 1e-9 + 1e-14 * std::abs(budget)) {
        size_t best = set.size();
        double best_slope = kInf;
        double best_room = 0;
        for (size_t s = 0; s < set.size(); ++s) {
          const Enumeration::Unit& unit = problem_.units[set[s]];
          if (unit.time >= problem_.records[k].time) continue;
          const double at = unit.knots.front().bytes + taken_bytes[s];
          for (size_t i = 0; i + 1 < unit.knots.size(); ++i) {
            const double room = unit.knots[i + 1].bytes - at;
            if (room <= 1e-9) continue;
            const double slope =
                (unit.knots[i + 1].ms - unit.knots[i].ms) /
                (unit.knots[i + 1].bytes - unit.knots[i].bytes);
            if (slope < best_slope) {
              best = s;
              best_slope = slope;
              best_room = room;
            }
            break;
          }
        }
        if (best == set.size()) return kInf;
        const double more = std::min(best_room, missing);
        taken_bytes[best] += more;
        missing -= more;
        ms += more * best_slope;
      }
    }
    return ms;
  }

 private:
  void Extend(size_t next,
              const std::function<void(const std::vector<int>&)>& use) {
    if (next == problem_.units.size()) {
      use(set_);
      return;
    }
    Extend(next + 1, use);
    if (problem_.max_units &&
        static_cast<int>(set_.size()) >= *problem_.max_units) {
      return;
    }
    for (const int other : problem_.units[next].nested_with) {
      if (std::ranges::find(set_, other) != set_.end()) return;
    }
    set_.push_back(static_cast<int>(next));
    Extend(next + 1, use);
    set_.pop_back();
  }

  const Enumeration& problem_;
  std::vector<int> set_;
};

}  // namespace

std::optional<double> Enumeration::LeastMs(double budget) const {
  if (fixed_bytes > budget) return std::nullopt;
  double least = kInf;
  SetSearch search(*this);
  search.ForEach([&](const std::vector<int>& set) {
    least = std::min(least, search.LeastMs(set, budget));
  });
  if (least == kInf) return std::nullopt;
  return least;
}

double Enumeration::LeastBudget() const {
  double least = kInf;
  SetSearch search(*this);
  search.ForEach([&](const std::vector<int>& set) {
    double peak = fixed_bytes;
    for (const double bytes : search.Above(0, set, true)) {
      peak = std::max(peak, bytes);
    }
    least = std::min(least, peak);
  });
  return least;
}

Enumeration EnumerationOf(const Profile& profile,
                          const EnumerationOptions& options) {
  Enumeration result;
  result.max_units = options.max_units;
  result.fixed_bytes = FixedBytes(profile, options.memory);
  std::vector<const Module*> by_time;
  for (const std::string& fqn : profile.order.fw_post) {
    by_time.push_back(&*std::ranges::find(profile.modules, fqn, &Module::fqn));
    result.records.push_back(
        {.time = static_cast<int>(result.records.size()),
         .bytes = RecordBytes(profile, *by_time.back(), options.memory)});
  }
  std::vector<const Module*> units;
  for (size_t t = 0; t < by_time.size(); ++t) {
    const Module& module = *by_time[t];
    if (module.is_leaf || !HasFit(module)) continue;
    if (!options.ac_units.empty() &&
        std::ranges::find(options.ac_units, module.fqn) ==
            options.ac_units.end()) {
      continue;
    }
    if (std::ranges::any_of(options.fsdp_units, [&](const auto& name) {
          return IsBelow(name, module.fqn);
        })) {
      continue;
    }
    Enumeration::Unit unit{.id = static_cast<int>(t),
                           .time = static_cast<int>(t),
                           .held_bytes = HeldBytes(module, options.memory),
                           .contains = {},
                           .knots = UnitKnots(module, options.memory),
                           .nested_with = {}};
    if (unit.knots.empty()) continue;
    for (const Module* other : by_time) {
      unit.contains.push_back(other == &module ||
                              IsBelow(other->fqn, module.fqn));
    }
    for (size_t u = 0; u < units.size(); ++u) {
      if (IsBelow(units[u]->fqn, module.fqn) ||
          IsBelow(module.fqn, units[u]->fqn)) {
        unit.nested_with.push_back(static_cast<int>(u));
      }
    }
    units.push_back(&module);
    result.units.push_back(std::move(unit));
  }
  return result;
}

Enumeration EnumerationOf(const ModuleProblem& problem) {
  Enumeration result;
  result.max_units = problem.max_units;
  result.fixed_bytes = problem.fixed_bytes;
  const int n = static_cast<int>(problem.nodes.size());
  std::map<int, int> by_time;
  for (int i = 0; i < n; ++i) {
    if (problem.nodes[i].time >= 0) by_time[problem.nodes[i].time] = i;
  }
  for (const auto& [time, node] : by_time) {
    result.records.push_back({time, problem.nodes[node].base_bytes});
  }
  const auto is_inside = [&](int node, int unit) {
    return unit <= node && node < unit + problem.nodes[unit].subtree_size;
  };
  for (int i = 0; i < n; ++i) {
    const ModuleProblem::Node& node = problem.nodes[i];
    if (node.curve.empty()) continue;
    Enumeration::Unit unit{.id = i,
                           .time = node.time,
                           .held_bytes = node.held_bytes,
                           .contains = {},
                           .knots = node.curve,
                           .nested_with = {}};
    for (const auto& [time, other] : by_time) {
      unit.contains.push_back(is_inside(other, i));
    }
    for (size_t u = 0; u < result.units.size(); ++u) {
      if (is_inside(i, result.units[u].id)) {
        unit.nested_with.push_back(static_cast<int>(u));
      }
    }
    result.units.push_back(std::move(unit));
  }
  return result;
}

double PeakOf(const Profile& profile, const std::vector<PlannedModule>& modules,
              const MemoryOptions& memory) {
  double peak = FixedBytes(profile, memory);
  double discarded = 0;
  for (const std::string& fqn : profile.order.fw_post) {
    const Module& module =
        *std::ranges::find(profile.modules, fqn, &Module::fqn);
    double bytes = RecordBytes(profile, module, memory) - discarded;
    for (const PlannedModule& unit : modules) {
      const Module& checkpointed =
          *std::ranges::find(profile.modules, unit.fqn, &Module::fqn);
      const double held_bytes = HeldBytes(checkpointed, memory);
      if (fqn == unit.fqn || IsBelow(fqn, unit.fqn)) bytes += held_bytes;
      if (fqn == unit.fqn) {
        const double sac = SacBytes(checkpointed);
        discarded += sac * unit.discard_ratio -
                     (sac - InternalBytes(checkpointed)) - held_bytes;
      }
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

double MsOf(const Profile& profile, const std::vector<PlannedModule>& modules) {
  double ms = 0;
  for (const PlannedModule& unit : modules) {
    ms += FitMs(*std::ranges::find(profile.modules, unit.fqn, &Module::fqn),
                unit.discard_ratio);
  }
  return ms;
}

}  // namespace acplan::problems
