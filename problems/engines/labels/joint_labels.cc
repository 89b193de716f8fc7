#include "problems/engines/labels/joint_labels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "problems/engines/labels/completion_bound.h"
#include "problems/engines/labels/label_passes.h"
#include "problems/engines/labels/module_labels.h"
#include "problems/model/joint_solution.h"
#include "solver/labels/convex_cost.h"
#include "solver/labels/label_history.h"

namespace acplan::problems {

using solver::ConvexCost;
using solver::CostSegment;
using solver::LabelHistory;
using solver::SearchStatus;

using solver::SearchLimits;
using solver::StoppedBy;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
// The dearest unit costs about 1000 ms once times are scaled: 2^46 ticks.
constexpr double kTicksAMs = 0x1p36;

// Bytes discarded so far, what that cost, and how.
struct Label {
  int64_t bytes, ticks;
  int32_t move;
  uint32_t
      taken;  // of the steps since `move`, a bit each, the first the lowest
};
using Labels = std::vector<Label>;  // bytes and ticks strictly ascending

struct TickKind {
  int64_t bytes, ticks;
  int count;
  double Slope() const {
    return static_cast<double>(ticks) / static_cast<double>(bytes);
  }
};

struct TickPolicies {
  int64_t base_bytes = 0;
  int64_t base_ticks = 0;
  std::vector<TickKind> kinds = {};
  std::vector<CostSegment> relaxed = {};  // ms a byte
};

TickPolicies ToTicks(const JointProblem::Policies& policies) {
  const auto ticks = [](double ms) {
    return static_cast<int64_t>(std::llround(ms * kTicksAMs));
  };
  TickPolicies result{.base_bytes = policies.base_bytes,
                      .base_ticks = ticks(policies.base_ms)};
  for (const GroupKind& kind : policies.kinds) {
    result.kinds.push_back({kind.bytes, ticks(kind.ms), kind.count});
    result.relaxed.push_back(
        {kind.bytes * kind.count, result.kinds.back().Slope() / kTicksAMs});
  }
  std::ranges::stable_sort(result.relaxed, {}, &CostSegment::slope);
  return result;
}

// What neither `a` nor `b` beats; of equals, a's.
Labels Envelope(std::span<const Label> a, std::span<const Label> b) {
  Labels merged;
  merged.reserve(a.size() + b.size());
  size_t i = a.size();
  size_t j = b.size();
  int64_t least = std::numeric_limits<int64_t>::max();
  const auto offer = [&](const Label& next) {
    if (next.ticks >= least) return;
    least = next.ticks;
    merged.push_back(next);
  };
  while (i > 0 && j > 0) {
    const Label& x = a[i - 1];
    const Label& y = b[j - 1];
    const bool takes_x =
        x.bytes > y.bytes || (x.bytes == y.bytes && x.ticks <= y.ticks);
    offer(takes_x ? x : y);
    takes_x ? --i : --j;
  }
  for (; i > 0; --i) offer(a[i - 1]);
  for (; j > 0; --j) offer(b[j - 1]);
  std::ranges::reverse(merged);
  return merged;
}

void Cut(Labels& labels, int64_t need) {
  labels.erase(labels.begin(),
               std::ranges::lower_bound(labels, need, {}, &Label::bytes));
}

// Some steps in a label's history: which of those from `first_step` on of an
// AddedUnit recompute their copies.
struct Move {
  int32_t previous;
  int32_t added;
  int32_t first_step;
  uint32_t taken;
};
constexpr int kStepsAMove = 32;
constexpr size_t kKindsABlock = 64;

// A unit as it was added to some labels: what is settled, and the steps by
// which the rest was decided.
struct AddedUnit {
  struct Step {
    int kind, copies;
  };
  int unit = 0;
  std::vector<int> settled;  // copies recomputed, a kind
  std::vector<Step> steps;
};

// The copies of a kind that the bound does not settle.
struct OpenKind {
  int kind;
  int64_t bytes, ticks;
  int copies;
  double distance;  // from the relaxation's price, ticks
};

struct Opened {
  int64_t bytes = 0;  // of the copies that are settled to be recomputed
  int64_t ticks = 0;
  std::vector<int> settled;     // how many of each kind they are
  std::vector<OpenKind> kinds;  // the most settled first
};

class Pass {
 public:
  Pass(const JointProblem& problem, const FixedProblem& fixed,
       const std::vector<TickPolicies>& policies, const CompletionBound& bound,
       double threshold, size_t width, const PassCheck& check)
      : problem_(problem),
        nodes_(problem.relaxed.nodes),
        fixed_(fixed),
        policies_(policies),
        bound_(bound),
        threshold_(threshold),
        width_(width),
        check_(check),
        lost_from_(nodes_.size() + 1, 0) {
    for (size_t i = nodes_.size(); i-- > 0;) {
      const int policy = problem_.policies_of[i];
      const int64_t least = policy < 0 ? 0 : policies_[policy].base_bytes;
      lost_from_[i] = lost_from_[i + 1] + std::max<int64_t>(-least, 0);
    }
  }

  PassResult Run() {
    const auto& max_units = problem_.relaxed.max_units;
    std::vector<Labels> all(max_units ? static_cast<size_t>(*max_units) + 1
                                      : 1);
    all[0].push_back({.bytes = 0, .ticks = 0, .move = -1, .taken = 0});
    all = WalkSiblings(0, static_cast<int>(nodes_.size()), std::move(all));
    if (IsStopped()) return std::move(result_);
    const Label* last = nullptr;
    for (const Labels& labels : all) {
      if (!labels.empty() && (!last || labels.front().ticks < last->ticks)) {
        last = &labels.front();
      }
    }
    // Unused units are credited in the bounds, so with max_units a label that
    // is no better than the best plan may get here.
    if (last && ToMs(last->ticks) < threshold_)
      result_.units = Backtrack(*last);
    return std::move(result_);
  }

 private:
  static double ToMs(int64_t ticks) {
    return static_cast<double>(ticks) / kTicksAMs;
  }

  bool IsStopped() const { return result_.stopped_by != StoppedBy::kNothing; }

  // Later units may discard less than nothing.
  int64_t NeedAfter(int i) const {
    return fixed_.need_after[i] + lost_from_[i + nodes_[i].subtree_size];
  }

  std::vector<Labels> WalkSiblings(int begin, int end,
                                   std::vector<Labels> all) {
    for (int i = begin; i < end && !IsStopped(); i += nodes_[i].subtree_size) {
      all = WalkNode(i, std::move(all));
    }
    return all;
  }

  std::vector<Labels> WalkNode(int i, std::vector<Labels> all) {
    if (!fixed_.has_units[i]) {
      for (Labels& labels : all) Cut(labels, fixed_.subtree_need[i]);
      return all;
    }
    std::vector<Labels> as_unit(all.size());
    if (problem_.policies_of[i] >= 0) {
      const size_t used = problem_.relaxed.max_units ? 1 : 0;
      for (size_t k = 0; k + used < all.size() && !IsStopped(); ++k) {
        as_unit[k + used] = AddUnit(i, k + used, all[k]);
      }
    }
    if (nodes_[i].must_be_unit) {
      for (size_t k = 0; k < all.size(); ++k) {
        Prune(bound_.After(i), k, as_unit[k]);
      }
      return as_unit;
    }
    set_aside_.push_back(&as_unit);
    all = WalkSiblings(i + 1, i + nodes_[i].subtree_size, std::move(all));
    set_aside_.pop_back();
    for (size_t k = 0; k < all.size(); ++k) {
      Cut(all[k], fixed_.need[i]);
      if (!as_unit[k].empty()) all[k] = Envelope(all[k], as_unit[k]);
    }
    DropDearerCounts(all);
    for (size_t k = 0; k < all.size(); ++k) {
      Prune(bound_.After(i), k, all[k]);
      CapAt(NeedAfter(i), all[k]);
    }
    if (history_.IsLong()) Forget(all);
    if (!IsStopped()) result_.stopped_by = check_(result_.labels);
    return all;
  }

  void Forget(std::vector<Labels>& all) {
    std::vector<std::vector<Labels>*> live = set_aside_;
    live.push_back(&all);
    history_.Forget([&](auto apply) {
      for (std::vector<Labels>* group : live) {
        for (Labels& labels : *group) {
          for (Label& label : labels) {
            if (label.move >= 0) apply(label.move);
          }
        }
      }
    });
  }

  Labels AddUnit(int i, size_t count, const Labels& before) {
    const TickPolicies& unit = policies_[problem_.policies_of[i]];
    const int64_t need = fixed_.unit_need[i];
    const auto first =
        std::ranges::lower_bound(before, need, {}, &Label::bytes);
    Labels labels(first, before.end());
    for (Label& label : labels) {
      label.bytes += unit.base_bytes;
      label.ticks += unit.base_ticks;
    }
    const ConvexCost relaxed = bound_.After(i).Plus(unit.relaxed);
    Opened opened = Open(unit, relaxed, count, labels);
    if (labels.empty()) return labels;
    added_.push_back(
        {.unit = i, .settled = std::move(opened.settled), .steps = {}});
    for (Label& label : labels) {
      label.bytes += opened.bytes;
      label.ticks += opened.ticks;
    }

    // What is to come from a kind on; a block of kinds at a time, since all
    // would take memory in the square of their number.
    const size_t n = opened.kinds.size();
    const size_t blocks = (n + kKindsABlock - 1) / kKindsABlock;
    std::vector<ConvexCost> from_block(blocks + 1);
    from_block[blocks] = bound_.After(i);
    for (size_t b = blocks; b-- > 1;) {
      from_block[b] = Rest(opened, b, from_block[b + 1]).front();
    }
    for (size_t b = 0; b < blocks; ++b) {
      const std::vector<ConvexCost> rest = Rest(opened, b, from_block[b + 1]);
      for (size_t r = 0; r < rest.size(); ++r) {
        const ConvexCost& to_come =
            r + 1 < rest.size() ? rest[r + 1] : from_block[b + 1];
        Decide(opened.kinds[b * kKindsABlock + r], rest[r], to_come, count,
               labels);
      }
    }
    CapAt(NeedAfter(i), labels);
    Remember(labels);
    first_open_step_ = 0;
    return labels;
  }

  // For each of a block's kinds, what is to come from it on.
  static std::vector<ConvexCost> Rest(const Opened& opened, size_t block,
                                      const ConvexCost& after) {
    const size_t begin = block * kKindsABlock;
    const size_t end = std::min(opened.kinds.size(), begin + kKindsABlock);
    std::vector<ConvexCost> rest(end - begin);
    const ConvexCost* later = &after;
    for (size_t k = end; k-- > begin;) {
      const OpenKind& kind = opened.kinds[k];
      rest[k - begin] =
          later->Plus({{kind.bytes * kind.copies,
                        static_cast<double>(kind.ticks) /
                            static_cast<double>(kind.bytes) / kTicksAMs}});
      later = &rest[k - begin];
    }
    return rest;
  }

  // Adds the copies of a kind. `rest`: with those, `to_come`: without.
  void Decide(const OpenKind& kind, const ConvexCost& rest,
              const ConvexCost& to_come, size_t count, Labels& labels) {
    // 1, 2, 4 ... copies at once make every number of them.
    for (int done = 0; done < kind.copies && !IsStopped();) {
      const int copies = std::min(done + 1, kind.copies - done);
      done += copies;
      if (OpenSteps() == kStepsAMove) Remember(labels);
      added_.back().steps.push_back({kind.kind, copies});
      Extend(kind.bytes * copies, kind.ticks * copies,
             done < kind.copies ? rest : to_come, count, labels);
      if (!IsStopped()) result_.stopped_by = check_(result_.labels);
    }
  }

  // Steps of the last unit that are bits in labels.
  int OpenSteps() const {
    return static_cast<int>(added_.back().steps.size()) - first_open_step_;
  }

  void Remember(Labels& labels) {
    for (Label& label : labels) {
      label.move =
          history_.Add({label.move, static_cast<int32_t>(added_.size()) - 1,
                        first_open_step_, label.taken});
      label.taken = 0;
    }
    first_open_step_ = static_cast<int>(added_.back().steps.size());
    if (history_.IsFull()) result_.stopped_by = StoppedBy::kMemory;
  }

  // Each label with or without some bytes and ticks: what no other beats and
  // may lead to a better plan. Of most labels one side may, so both sides are
  // pruned before they are merged.
  void Extend(int64_t bytes, int64_t ticks, const ConvexCost& rest,
              size_t count, Labels& labels) {
    const double limit = threshold_ + Credit(count);
    const uint32_t bit = uint32_t{1} << (OpenSteps() - 1);
    const size_t n = labels.size();
    if (with_.size() < n) {
      with_.resize(2 * n);
      without_.resize(2 * n);
    }
    size_t with_size = 0;
    size_t without_size = 0;
    ConvexCost::Reader with_reader(rest);
    ConvexCost::Reader without_reader(rest);
    for (const Label& label : labels) {
      const int64_t missing = fixed_.largest_need - label.bytes;
      without_[without_size] = label;
      without_size +=
          ToMs(label.ticks) + without_reader.At(missing) < limit ? 1 : 0;
      with_[with_size] = {label.bytes + bytes, label.ticks + ticks, label.move,
                          label.taken | bit};
      with_size +=
          ToMs(label.ticks + ticks) + with_reader.At(missing - bytes) < limit
              ? 1
              : 0;
    }
    // Filled from the end: the same memory serves every time.
    if (merged_.size() < with_size + without_size) {
      merged_.resize(with_.size() + without_.size());
    }
    size_t begin = merged_.size();
    int64_t least = std::numeric_limits<int64_t>::max();
    const auto offer = [&](const Label& next) {
      merged_[begin - 1] = next;
      begin -= next.ticks < least ? 1 : 0;
      least = std::min(least, next.ticks);
    };
    while (with_size > 0 && without_size > 0) {
      const Label& a = without_[without_size - 1];
      const Label& b = with_[with_size - 1];
      const bool takes_a =
          a.bytes > b.bytes || (a.bytes == b.bytes && a.ticks <= b.ticks);
      offer(takes_a ? a : b);
      without_size -= takes_a ? 1 : 0;
      with_size -= takes_a ? 0 : 1;
    }
    for (; with_size > 0; --with_size) offer(with_[with_size - 1]);
    for (; without_size > 0; --without_size) offer(without_[without_size - 1]);
    labels.assign(merged_.begin() + static_cast<ptrdiff_t>(begin),
                  merged_.end());
    result_.labels += static_cast<int64_t>(labels.size());
    if (labels.size() > width_) Prune(rest, count, labels);
  }

  // Drops labels that cannot lead to a better plan, and settles what the bound
  // settles for all others.
  Opened Open(const TickPolicies& unit, const ConvexCost& relaxed, size_t count,
              Labels& labels) const {
    struct Price {
      double slope, slack;  // ms a byte, ms
    };
    std::vector<Price> prices;
    ConvexCost::Reader reader(relaxed);
    const double credit = Credit(count);
    size_t kept = 0;
    for (const Label& label : labels) {
      const int64_t missing = fixed_.largest_need - label.bytes;
      const double bound = ToMs(label.ticks) + reader.At(missing) - credit;
      if (bound == kInf || bound >= threshold_) continue;
      labels[kept++] = label;
      const double slope = reader.SlopeAt(missing);
      const double slack = threshold_ - bound;
      if (!prices.empty() && prices.back().slope == slope) {
        prices.back().slack = std::max(prices.back().slack, slack);
      } else {
        prices.push_back({slope, slack});
      }
    }
    labels.resize(kept);
    Opened opened;
    if (labels.empty()) return opened;
    const double best_slope =
        std::ranges::max_element(prices, {}, &Price::slack)->slope;
    for (size_t k = 0; k < unit.kinds.size(); ++k) {
      const TickKind& kind = unit.kinds[k];
      const auto bytes = static_cast<double>(kind.bytes);
      const double ms = ToMs(kind.ticks);
      int fewest = kind.count;
      int most = 0;
      for (const Price& price : prices) {
        const double reduced = ms - price.slope * bytes;
        const double flips = std::floor(price.slack * (1 + 1e-9) /
                                        std::max(std::abs(reduced), 1e-300));
        const int copies =
            flips >= kind.count ? kind.count : static_cast<int>(flips);
        if (reduced <= 0) {
          fewest = std::min(fewest, kind.count - copies);
          most = kind.count;
        }
        if (reduced >= 0) {
          fewest = 0;
          most = std::max(most, copies);
        }
      }
      opened.bytes += kind.bytes * fewest;
      opened.ticks += kind.ticks * fewest;
      opened.settled.push_back(fewest);
      if (most > fewest) {
        opened.kinds.push_back({static_cast<int>(k), kind.bytes, kind.ticks,
                                most - fewest,
                                std::abs(ms - best_slope * bytes)});
      }
    }
    std::ranges::stable_sort(opened.kinds, std::greater<>(),
                             &OpenKind::distance);
    return opened;
  }

  // With a limit on the units, more of them are worth keeping only where they
  // cost less.
  static void DropDearerCounts(std::vector<Labels>& all) {
    if (all.size() <= 1) return;
    Labels least = all[0];
    for (size_t k = 1; k < all.size(); ++k) {
      Labels better;
      for (const Label& label : all[k]) {
        const auto rival =
            std::ranges::lower_bound(least, label.bytes, {}, &Label::bytes);
        if (rival == least.end() || rival->ticks > label.ticks) {
          better.push_back(label);
        }
      }
      all[k] = std::move(better);
      least = Envelope(least, all[k]);
    }
  }

  // What the bound charges for units that a label has left.
  double Credit(size_t count) const {
    const auto& max_units = problem_.relaxed.max_units;
    return max_units
               ? bound_.unit_price() *
                     static_cast<double>(*max_units - static_cast<int>(count))
               : 0;
  }

  // Drops what cannot lead to a better plan, and beyond the width what promises
  // least.
  void Prune(const ConvexCost& rest, size_t count, Labels& labels) {
    const double limit = threshold_ + Credit(count);
    bounds_.clear();
    ConvexCost::Reader reader(rest);
    size_t kept = 0;
    for (const Label& label : labels) {
      const double bound =
          ToMs(label.ticks) + reader.At(fixed_.largest_need - label.bytes);
      if (bound == kInf || bound >= limit) continue;
      bounds_.push_back(bound);
      labels[kept++] = label;
    }
    labels.resize(kept);
    Limit(count, labels);
  }

  // Drops what promises least, by bounds_, beyond the width.
  void Limit(size_t count, Labels& labels) {
    if (labels.size() <= width_) return;
    // The label that has discarded most is never dropped: where it cannot meet
    // the records to come, nothing can. So the first pass, which prunes nothing
    // for its cost, finds a plan if there is one.
    ranked_ = bounds_;
    std::nth_element(ranked_.begin(),
                     ranked_.begin() + static_cast<ptrdiff_t>(width_),
                     ranked_.end());
    const double limit = ranked_[width_];
    size_t kept = 0;
    for (size_t k = 0; k < bounds_.size(); ++k) {
      if (bounds_[k] < limit || k + 1 == bounds_.size()) {
        labels[kept++] = labels[k];
      } else {
        result_.least_dropped =
            std::min(result_.least_dropped, bounds_[k] - Credit(count));
      }
    }
    labels.resize(kept);
  }

  // No record to come asks for more than `need`.
  static void CapAt(int64_t need, Labels& labels) {
    const auto enough =
        std::ranges::lower_bound(labels, need, {}, &Label::bytes);
    if (enough != labels.end()) labels.erase(enough + 1, labels.end());
  }

  std::vector<ChosenUnit> Backtrack(const Label& last) const {
    std::vector<ChosenUnit> units;
    for (int32_t m = last.move; m >= 0; m = history_[m].previous) {
      const Move& move = history_[m];
      const AddedUnit& added = added_[move.added];
      if (units.empty() || units.back().node != added.unit) {
        units.push_back({.node = added.unit, .counts = added.settled});
      }
      for (int bit = 0; bit < kStepsAMove; ++bit) {
        if (!(move.taken >> bit & 1)) continue;
        const AddedUnit::Step& step = added.steps[move.first_step + bit];
        units.back().counts[step.kind] += step.copies;
      }
    }
    for (ChosenUnit& unit : units) {
      unit.net_bytes = static_cast<double>(
          problem_.policies[problem_.policies_of[unit.node]].BytesOf(
              unit.counts));
    }
    std::ranges::reverse(units);
    return units;
  }

  const JointProblem& problem_;
  const std::vector<ModuleProblem::Node>& nodes_;
  const FixedProblem& fixed_;
  const std::vector<TickPolicies>& policies_;
  const CompletionBound& bound_;
  double threshold_;
  size_t width_;
  const PassCheck& check_;
  // The most that units from a node on may keep beyond what they discard.
  std::vector<int64_t> lost_from_;
  // Units set aside while their children are walked.
  std::vector<std::vector<Labels>*> set_aside_;
  LabelHistory<Move> history_;
  std::vector<AddedUnit> added_;
  int first_open_step_ = 0;  // of the last unit that was added
  PassResult result_;
  // Scratch. Bounds are before credits.
  Labels with_, without_, merged_;
  std::vector<double> bounds_, ranked_;
};

struct Start {
  std::vector<ChosenUnit> known = {};
  bool known_is_near = false;
  double bound_ms = 0;  // no plan costs less
};

ModuleSolution Search(const JointProblem& problem, const SearchLimits& limits,
                      const Start& start) {
  const ModuleProblem& relaxed = problem.relaxed;
  std::vector<TickPolicies> policies;
  policies.reserve(problem.policies.size());
  for (const JointProblem::Policies& p : problem.policies) {
    policies.push_back(ToTicks(p));
  }
  const FixedProblem fixed = ToFixedPoint(relaxed, 1);
  const double unit_price = BestUnitPrice(relaxed, fixed);
  const CompletionBound bound(relaxed, fixed, unit_price);
  const auto run = [&](double threshold, size_t width, const PassCheck& check) {
    return Pass(problem, fixed, policies, bound, threshold, width, check).Run();
  };
  const auto improve = [&](std::vector<ChosenUnit> units) {
    units = WithoutNeedlessUnits(relaxed, std::move(units));
    for (ChosenUnit& unit : units) {
      unit = WithCheapPolicy(problem, std::move(unit));
    }
    return units;
  };
  const auto cost = [&](const std::vector<ChosenUnit>& units) {
    return JointCost(problem, units);
  };
  return SearchByPasses(
      relaxed,
      std::max(start.bound_ms,
               bound.AtRoot() - unit_price * relaxed.max_units.value_or(0)),
      limits,
      {.run = run,
       .improve = improve,
       .cost = cost,
       .known = start.known,
       .known_is_near = start.known_is_near});
}

// Bytes so few that a group of them hardly decides which plan is best, though
// many of them make many labels.
int64_t FewBytes(const JointProblem& problem) {
  constexpr double kShare = 0x1p-13;
  double need = 0;
  for (const ModuleProblem::Node& node : problem.relaxed.nodes) {
    if (node.time >= 0) {
      need = std::max(need, node.base_bytes - problem.relaxed.budget_bytes);
    }
  }
  return static_cast<int64_t>(need * kShare);
}

enum class SmallGroups {
  kFree,    // recomputed for nothing: a relaxation
  kPriced,  // recomputed where a byte costs less than a price, else saved: a
            // restriction
};

// Of a small group: whether a byte costs less than a price.
bool IsCheap(const GroupKind& kind, double price) {
  return kind.ms < price * static_cast<double>(kind.bytes);
}

// The problem in which small groups are not decided; nullopt where there are
// none.
std::optional<JointProblem> WithoutSmallGroups(const JointProblem& problem,
                                               int64_t few_bytes,
                                               SmallGroups small,
                                               double price) {
  JointProblem large = problem;
  bool has_small = false;
  for (JointProblem::Policies& policies : large.policies) {
    std::erase_if(policies.kinds, [&](const GroupKind& kind) {
      if (kind.bytes > few_bytes) return false;
      has_small = true;
      if (small == SmallGroups::kFree || IsCheap(kind, price)) {
        policies.base_bytes += kind.bytes * kind.count;
        policies.base_ms +=
            small == SmallGroups::kFree ? 0 : kind.ms * kind.count;
      }
      return true;
    });
  }
  if (!has_small) return std::nullopt;
  for (size_t i = 0; i < large.policies_of.size(); ++i) {
    if (large.policies_of[i] < 0) continue;
    const JointProblem::Policies& policies =
        large.policies[large.policies_of[i]];
    large.relaxed.nodes[i].curve = HullOf(policies);
  }
  return large;
}

// The problem in which nothing but the small groups of a plan's units is left
// to decide. The plan is one for `without_small`.
JointProblem OverSmallGroups(const JointProblem& problem,
                             const JointProblem& without_small,
                             int64_t few_bytes,
                             const std::vector<ChosenUnit>& units) {
  JointProblem left = problem;
  left.policies.clear();
  left.policies_of.assign(problem.policies_of.size(), -1);
  for (ModuleProblem::Node& node : left.relaxed.nodes) node.curve.clear();
  for (const ChosenUnit& unit : units) {
    const JointProblem::Policies& all =
        problem.policies[problem.policies_of[unit.node]];
    const JointProblem::Policies& large =
        without_small.policies[without_small.policies_of[unit.node]];
    JointProblem::Policies policies{
        .base_bytes = all.base_bytes, .base_ms = all.base_ms, .kinds = {}};
    for (size_t k = 0; k < unit.counts.size(); ++k) {
      policies.base_bytes += large.kinds[k].bytes * unit.counts[k];
      policies.base_ms += large.kinds[k].ms * unit.counts[k];
    }
    for (const GroupKind& kind : all.kinds) {
      if (kind.bytes <= few_bytes) policies.kinds.push_back(kind);
    }
    left.relaxed.nodes[unit.node].curve = HullOf(policies);
    left.policies_of[unit.node] = static_cast<int>(left.policies.size());
    left.policies.push_back(std::move(policies));
  }
  return left;
}

// The same policy in a problem whose kinds are those of two others: the large
// ones of the first, the small ones of the second or, without, recomputed below
// a price.
ChosenUnit Combined(const JointProblem::Policies& policies, int64_t few_bytes,
                    double price, const ChosenUnit& large,
                    const ChosenUnit* small) {
  ChosenUnit unit{.node = large.node};
  size_t next_large = 0;
  size_t next_small = 0;
  for (const GroupKind& kind : policies.kinds) {
    if (kind.bytes > few_bytes) {
      unit.counts.push_back(large.counts[next_large++]);
    } else if (small) {
      unit.counts.push_back(small->counts[next_small++]);
    } else {
      unit.counts.push_back(IsCheap(kind, price) ? kind.count : 0);
    }
  }
  unit.net_bytes = static_cast<double>(policies.BytesOf(unit.counts));
  return unit;
}

// The bytes of small groups make nearly all labels, and hardly any difference:
// a plan that decides about large groups alone is found in no time, small groups
// are added to it, and where the relaxation that has them for nothing costs as
// much, that is the proof. Else the search starts from that plan.
ModuleSolution SearchLargeGroupsFirst(const JointProblem& problem,
                                      const SearchLimits& limits,
                                      const std::vector<ChosenUnit>& known) {
  const int64_t few_bytes = FewBytes(problem);
  const FixedProblem fixed = ToFixedPoint(problem.relaxed, 1);
  const double price = CompletionBound(problem.relaxed, fixed, 0).PriceAtRoot();
  const auto priced =
      WithoutSmallGroups(problem, few_bytes, SmallGroups::kPriced, price);
  if (!priced) return Search(problem, limits, {.known = known});

  const solver::Stopwatch stopwatch;
  int64_t labels = 0;
  const auto left = [&] {
    SearchLimits rest = limits;
    rest.time_limit_s =
        std::max(0.0, limits.time_limit_s - stopwatch.Seconds());
    rest.node_limit = std::max<int64_t>(0, limits.node_limit - labels);
    return rest;
  };
  // For searches whose bounds are not of this problem.
  const auto share = [&] {
    SearchLimits some = left();
    some.time_limit_s /= 3;
    some.node_limit = some.node_limit / 3 + 1;
    some.on_progress = nullptr;
    return some;
  };
  Start start{.known = known};
  const auto offer = [&](std::vector<ChosenUnit> units) {
    if (!start.known.empty() &&
        JointCost(problem, units) >= JointCost(problem, start.known)) {
      return;
    }
    start.known = std::move(units);
    start.known_is_near = true;
  };

  const ModuleSolution large = Search(*priced, share(), {});
  labels += large.nodes;
  if (!large.units.empty()) {
    const JointProblem small =
        OverSmallGroups(problem, *priced, few_bytes, large.units);
    const ModuleSolution both = Search(small, share(), {});
    labels += both.nodes;
    std::vector<ChosenUnit> as_priced;
    std::vector<ChosenUnit> refined;
    for (const ChosenUnit& unit : large.units) {
      const JointProblem::Policies& policies =
          problem.policies[problem.policies_of[unit.node]];
      as_priced.push_back(Combined(policies, few_bytes, price, unit, nullptr));
      const auto of_small =
          std::ranges::find(both.units, unit.node, &ChosenUnit::node);
      if (of_small == both.units.end()) continue;
      refined.push_back(Combined(policies, few_bytes, price, unit, &*of_small));
    }
    offer(std::move(as_priced));
    if (!both.units.empty()) offer(std::move(refined));
  }

  const JointProblem for_free =
      *WithoutSmallGroups(problem, few_bytes, SmallGroups::kFree, 0);
  std::vector<ChosenUnit> known_for_free;
  for (const ChosenUnit& unit : large.units) {
    known_for_free.push_back(WithCheapPolicy(for_free, unit));
  }
  const ModuleSolution free =
      Search(for_free, share(),
             {.known = std::move(known_for_free), .known_is_near = true});
  labels += free.nodes;
  start.bound_ms = free.bound_ms;

  SearchLimits rest = left();
  if (limits.on_progress) {
    rest.on_progress = [&](solver::SearchProgress progress) {
      progress.nodes += labels;
      limits.on_progress(progress);
    };
  }
  ModuleSolution solution = Search(problem, rest, start);
  solution.nodes += labels;
  solution.seconds = stopwatch.Seconds();
  return solution;
}

// A plan from the relaxation, its policies rounded up, where a limit left none.
ModuleSolution RoundedUp(const JointProblem& problem, ModuleSolution solution) {
  constexpr double kSeconds = 1;
  const ModuleSolution relaxed =
      SolveByLabels(problem.relaxed, {.time_limit_s = kSeconds, .gap = 1});
  if (relaxed.units.empty()) return solution;
  for (ChosenUnit unit : relaxed.units) {
    const JointProblem::Policies& policies =
        problem.policies[problem.policies_of[unit.node]];
    auto bytes = static_cast<double>(policies.base_bytes);
    for (const GroupKind& kind : policies.kinds) {
      const double missing = std::max(0.0, unit.net_bytes - bytes);
      const double copies =
          std::min(static_cast<double>(kind.count),
                   std::ceil(missing / static_cast<double>(kind.bytes)));
      unit.counts.push_back(static_cast<int>(copies));
      bytes += copies * static_cast<double>(kind.bytes);
    }
    unit.net_bytes = bytes;
    solution.units.push_back(WithCheapPolicy(problem, std::move(unit)));
  }
  solution.status = SearchStatus::kFeasible;
  solution.ms = JointCost(problem, solution.units);
  solution.bound_ms =
      std::min(solution.ms, std::max(solution.bound_ms, relaxed.bound_ms));
  return solution;
}

}  // namespace

ModuleSolution SolveJointByLabels(const JointProblem& problem,
                                  const SearchLimits& limits,
                                  const std::vector<ChosenUnit>& known) {
  if (!problem.relaxed.prefix_structure) {
    throw std::invalid_argument(
        "SolveJointByLabels: the problem has no prefix structure");
  }
  return SolveJointWithScaledTimes(
      problem, limits,
      [&](const JointProblem& scaled, const SearchLimits& scaled_limits) {
        ModuleSolution solution =
            SearchLargeGroupsFirst(scaled, scaled_limits, known);
        if (solution.status == SearchStatus::kNoSolution &&
            limits.time_limit_s > 0 && scaled_limits.cut_off == kInf) {
          return RoundedUp(scaled, std::move(solution));
        }
        return solution;
      });
}

}  // namespace acplan::problems
