#include "problems/schedule/moment_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "solver/cut_off.h"

// Idea. Memory binds at few moments, and the order of runs between them matters
// little. A model of all stages has n^2 columns of each kind, and its optimum
// is that of a model of some dozen segments. Running the optimum's schedule
// shows which moments bind (schedule_search.cc).
//
// Sizes are divided by their greatest common divisor, so that rows of bytes
// hold small numbers, which a solver's tolerance cannot blur; so are times if
// they are whole numbers. Rows whose numbers are still not small are scaled and
// slightly relaxed: then a solver's "infeasible" and its bounds are right, and
// a solution that breaks the row in whole numbers is cut off.

namespace acplan::problems {

using graph::ScheduleGraph;
using graph::ScheduleNode;
using graph::ScheduleValue;
using solver::Milp;

namespace {

// Times larger than this are not whole numbers for sure.
constexpr double kMostWhole = 0x1p53;
// Rows of bytes with a larger coefficient are scaled so that the largest is
// less than twice this.
constexpr double kMostUnits = 1024;
// A solver's bound may be too high by this.
constexpr double kWholeTolerance = 1e-6;
constexpr double kShareTolerance = 1e-9;

// Returns the greatest common divisor of all times, or 0 if they are no whole
// numbers.
double TimeUnit(const ScheduleGraph& graph) {
  int64_t unit = 0;
  for (const ScheduleNode& node : graph.nodes) {
    if (node.ms != std::floor(node.ms) || node.ms > kMostWhole) return 0;
    unit = std::gcd(unit, static_cast<int64_t>(node.ms));
  }
  return static_cast<double>(std::max<int64_t>(unit, 1));
}

int64_t ByteUnit(const ScheduleGraph& graph) {
  int64_t unit = 0;
  for (const ScheduleValue& value : graph.values)
    unit = std::gcd(unit, value.bytes);
  for (const ScheduleNode& node : graph.nodes)
    unit = std::gcd(unit, node.scratch_bytes);
  return std::max<int64_t>(unit, 1);
}

// Returns, by value, whether the value is returned, or read by a node that
// first runs after `end` or may run again for that.
std::vector<char> UsefulAfter(const ScheduleGraph& graph, int32_t end) {
  std::vector<char> is_useful(graph.values.size(), 0);
  for (size_t b = 0; b < is_useful.size(); ++b)
    is_useful[b] = graph.values[b].is_returned;
  for (auto n = static_cast<int32_t>(graph.nodes.size()) - 1; n >= 0; --n) {
    const ScheduleNode& node = graph.nodes[n];
    const bool is_wanted = std::ranges::any_of(
        node.makes, [&](int32_t b) { return is_useful[b] != 0; });
    if (n <= end && !(node.may_run_again && is_wanted)) continue;
    for (const int32_t b : node.reads) is_useful[b] = 1;
  }
  return is_useful;
}

using ColumnUnits = std::map<int, int64_t>;  // bytes in units by column

// Returns the row "sum <= most", scaled and slightly relaxed.
Milp::Row RowOf(const ColumnUnits& sums, int64_t most, double wider) {
  double largest = 0;
  for (const auto& [column, units] : sums)
    largest = std::max(largest, static_cast<double>(units));
  const double scale =
      largest > kMostUnits ? std::exp2(-std::ilogb(largest / kMostUnits)) : 1;
  Milp::Row row{.upper = scale * (static_cast<double>(most) +
                                  std::max(0.5, wider * largest))};
  for (const auto& [column, units] : sums)
    row.terms.push_back(
        {.column = column, .coefficient = scale * static_cast<double>(units)});
  return row;
}

}  // namespace

class MomentModel::Builder {
 public:
  Builder(MomentModel& model, int64_t budget, double wider)
      : model_(model),
        graph_(model.graph_),
        unit_(ByteUnit(model.graph_)),
        // Rounded down: bytes are whole units.
        budget_((budget - model.graph_.held_bytes) / unit_),
        wider_(wider),
        readers_(model.graph_.values.size()) {
    for (int32_t n = 0; n < std::ssize(graph_.nodes); ++n)
      for (const int32_t b : graph_.nodes[n].reads) readers_[b].push_back(n);
  }

  void Build(const Moments& moments) {
    AddSegments(moments);
    for (size_t k = 0; k < Segments(); ++k) AddColumns(k);
    for (size_t k = 0; k < Segments(); ++k) {
      AddNeeds(k);
      if (k + 1 < Segments()) AddFirstRun(k);
    }
    for (const InnerMoment& moment : moments.inner) AddInner(moment);
  }

 private:
  size_t Segments() const { return model_.segments_.size(); }
  bool IsLast(size_t k) const { return k + 1 == Segments(); }
  int64_t Units(int32_t value) const {
    return graph_.values[value].bytes / unit_;
  }

  void AddSegments(const Moments& moments) {
    int32_t begin = 0;
    const auto last = static_cast<int32_t>(graph_.nodes.size()) - 1;
    for (const int32_t end : moments.first_runs) {
      model_.segments_.push_back({.begin = begin, .end = end});
      begin = end + 1;
    }
    model_.segments_.push_back({.begin = begin, .end = last});
  }

  int AddBinary(double cost) {
    return model_.program_.AddColumn(
        {.lower = 0, .upper = 1, .cost = cost, .is_integer = true});
  }

  void AddColumns(size_t k) {
    Segment& segment = model_.segments_[k];
    const std::vector<char> is_useful = UsefulAfter(graph_, segment.begin - 1);
    for (int32_t n = 0; n < segment.begin; ++n) {
      const ScheduleNode& node = graph_.nodes[n];
      const bool may =
          node.may_run_again && std::ranges::any_of(node.makes, [&](int32_t b) {
            return is_useful[b] != 0;
          });
      segment.run.push_back(may ? AddBinary(node.ms / model_.time_unit()) : -1);
    }
    if (IsLast(k)) return;
    const std::vector<char> is_useful_later = UsefulAfter(graph_, segment.end);
    for (int32_t n = 0; n <= segment.end; ++n)
      for (const int32_t b : graph_.nodes[n].makes)
        segment.keep.push_back(is_useful_later[b] ? AddBinary(0) : -1);
  }

  // Returns the columns of which at least one must be 1 if a value of an
  // earlier segment is there.
  std::vector<Milp::Term> Sources(size_t k, int32_t value) const {
    std::vector<Milp::Term> terms;
    const int keep = model_.segments_[k - 1].keep[value];
    const int run = model_.segments_[k].run[graph_.values[value].maker];
    if (keep >= 0) terms.push_back({.column = keep, .coefficient = 1});
    if (run >= 0) terms.push_back({.column = run, .coefficient = 1});
    return terms;
  }

  // Requires that `value` is there in segment k if `column` is 1; for -1, that
  // it is there.
  void AddNeed(size_t k, int32_t value, int column) {
    if (graph_.values[value].maker >= model_.segments_[k].begin) return;
    Milp::Row row{.lower = column < 0 ? 1.0 : 0.0, .terms = Sources(k, value)};
    if (column >= 0) row.terms.push_back({.column = column, .coefficient = -1});
    model_.program_.AddRow(std::move(row));
  }

  void AddNeeds(size_t k) {
    const Segment& segment = model_.segments_[k];
    for (int32_t n = 0; n <= segment.end; ++n) {
      const bool is_home = n >= segment.begin;
      if (!is_home && segment.run[n] < 0) continue;
      for (const int32_t b : graph_.nodes[n].reads)
        AddNeed(k, b, is_home ? -1 : segment.run[n]);
    }
    for (int32_t b = 0; b < std::ssize(segment.keep); ++b)
      if (segment.keep[b] >= 0) AddNeed(k, b, segment.keep[b]);
    for (int32_t b = 0; IsLast(k) && b < std::ssize(graph_.values); ++b)
      if (graph_.values[b].is_returned) AddNeed(k, b, -1);
  }

  void AddBytes(ColumnUnits sums, int64_t fixed) {
    std::erase_if(sums, [](const auto& sum) { return sum.second == 0; });
    const int64_t most = budget_ - fixed;
    const int row = model_.program_.AddRow(RowOf(sums, most, wider_));
    model_.bytes_.push_back(
        {.row = row, .units = std::move(sums), .most = most});
  }

  // Adds the row of the first run that ends segment k.
  void AddFirstRun(size_t k) {
    const Segment& segment = model_.segments_[k];
    const ScheduleNode& node = graph_.nodes[segment.end];
    std::set<int32_t> own(node.reads.begin(), node.reads.end());
    own.insert(node.makes.begin(), node.makes.end());
    int64_t fixed = node.scratch_bytes / unit_;
    for (const int32_t b : own) fixed += Units(b);
    ColumnUnits sums;
    for (int32_t b = 0; b < std::ssize(segment.keep); ++b)
      if (segment.keep[b] >= 0 && !own.contains(b))
        sums[segment.keep[b]] += Units(b);
    AddBytes(std::move(sums), fixed);
  }

  // The uses of a value at an inner moment or after it.
  struct Uses {
    bool is_certain = false;
    std::vector<int> columns = {};
  };
  Uses UsesOf(int32_t value, size_t k, const InnerMoment& moment) const {
    const Segment& segment = model_.segments_[k];
    Uses uses;
    for (const int32_t reader : readers_[value]) {
      if (reader < moment.node || reader > moment.stage) continue;
      if (reader == moment.stage) {
        uses.is_certain = true;
      } else if (segment.run[reader] >= 0) {
        uses.columns.push_back(segment.run[reader]);
      }
    }
    if (graph_.values[value].maker == moment.node)
      uses.columns.push_back(segment.run[moment.node]);
    if (IsLast(k)) {
      uses.is_certain = uses.is_certain || graph_.values[value].is_returned;
    } else if (segment.keep[value] >= 0) {
      uses.columns.push_back(segment.keep[value]);
    }
    return uses;
  }

  // Returns a column that is at least each of these. It need not be a binary;
  // since it is one, rows of bytes with it have whole numbers only.
  int AnyOf(const std::vector<int>& columns) {
    if (columns.size() == 1) return columns.front();
    const int any = AddBinary(0);
    for (const int column : columns) {
      model_.program_.AddRow(
          {.lower = 0,
           .terms = {{.column = any, .coefficient = 1},
                     {.column = column, .coefficient = -1}}});
    }
    model_.any_.push_back({.column = any, .columns = columns});
    return any;
  }

  void AddInner(const InnerMoment& moment) {
    const auto segment =
        std::ranges::find(model_.segments_, moment.stage, &Segment::end);
    const auto k = static_cast<size_t>(segment - model_.segments_.begin());
    if (segment->run[moment.node] < 0) return;
    int64_t fixed = 0;
    ColumnUnits sums;
    sums[segment->run[moment.node]] +=
        graph_.nodes[moment.node].scratch_bytes / unit_;
    for (int32_t b = 0; b < std::ssize(graph_.values); ++b) {
      const int32_t maker = graph_.values[b].maker;
      if (maker >= moment.stage) break;
      if (maker > moment.node) {
        const int keep = model_.segments_[k - 1].keep[b];
        if (keep >= 0) sums[keep] += Units(b);
        continue;
      }
      const Uses uses = UsesOf(b, k, moment);
      if (uses.is_certain) {
        fixed += Units(b);
      } else if (!uses.columns.empty()) {
        sums[AnyOf(uses.columns)] += Units(b);
      }
    }
    AddBytes(std::move(sums), fixed);
  }

  MomentModel& model_;
  const ScheduleGraph& graph_;
  int64_t unit_;
  int64_t budget_;  // in units
  double wider_;
  std::vector<std::vector<int32_t>> readers_;  // by value: nodes, ascending
};

MomentModel::MomentModel(const ScheduleGraph& graph, int64_t budget_bytes,
                         const Moments& moments, double wider)
    : graph_(graph), time_unit_(TimeUnit(graph)) {
  Builder(*this, budget_bytes, wider).Build(moments);
}

bool MomentModel::CutOff(const std::vector<double>& x) {
  const std::vector<double> exact = Exact(x);
  bool is_cut = false;
  for (const Bytes& bytes : bytes_) {
    int64_t remaining_units = bytes.most;
    std::vector<std::pair<int64_t, int>> live_columns;
    for (const auto& [column, units] : bytes.units) {
      if (exact[column] == 0) continue;
      remaining_units -= units;
      live_columns.push_back({units, column});
    }
    if (remaining_units >= 0) continue;
    // Without the smallest ones it is too much as well: with fewer terms the
    // row is stronger.
    std::vector<double> cover = exact;
    std::ranges::sort(live_columns);
    for (const auto& [units, column] : live_columns) {
      if (remaining_units + units >= 0) continue;
      remaining_units += units;
      cover[column] = 0;
    }
    program_ = solver::WithCutOff(std::move(program_), bytes.row, cover);
    is_cut = true;
  }
  return is_cut;
}

std::vector<double> MomentModel::Exact(std::vector<double> x) const {
  for (double& value : x) value = value > 0.5 ? 1 : 0;
  for (const Any& any : any_) {
    x[any.column] = 0;
    for (const int column : any.columns)
      x[any.column] = std::max(x[any.column], x[column]);
  }
  return x;
}

double MomentModel::Rounded(double bound) const {
  if (time_unit_ == 0) return bound;
  return std::ceil(bound - std::max(kWholeTolerance, kShareTolerance * bound));
}

std::vector<double> MomentModel::Encode(const StagedSchedule& schedule) const {
  std::vector<double> x(program_.columns.size(), 0);
  // A value is live after a stage if it is read later before it is made again:
  // a walk from the end determines that.
  std::vector<char> is_wanted(graph_.values.size(), 0);
  for (size_t b = 0; b < graph_.values.size(); ++b)
    is_wanted[b] = graph_.values[b].is_returned;
  const auto undo = [&](int32_t n) {
    for (const int32_t b : graph_.nodes[n].makes) is_wanted[b] = 0;
    for (const int32_t b : graph_.nodes[n].reads) is_wanted[b] = 1;
  };
  for (auto segment = segments_.rbegin(); segment != segments_.rend();
       ++segment) {
    for (size_t b = 0; b < segment->keep.size(); ++b)
      if (segment->keep[b] >= 0) x[segment->keep[b]] = is_wanted[b];
    for (int32_t s = segment->end; s >= segment->begin; --s) {
      undo(s);
      const std::vector<int32_t>& repeated_nodes = schedule.repeats[s];
      for (auto n = repeated_nodes.rbegin(); n != repeated_nodes.rend(); ++n) {
        undo(*n);
        if (*n < segment->begin && segment->run[*n] >= 0)
          x[segment->run[*n]] = 1;
      }
    }
  }
  return Exact(std::move(x));
}

StagedSchedule MomentModel::Decode(const std::vector<double>& x) const {
  StagedSchedule schedule = WithoutRecomputation(graph_);
  std::vector<char> is_there(graph_.values.size(), 0);
  std::vector<char> runs(graph_.nodes.size(), 0);
  for (size_t k = 0; k < segments_.size(); ++k) {
    const Segment& segment = segments_[k];
    for (size_t b = 0; k > 0 && b < is_there.size(); ++b) {
      const std::vector<int>& keep = segments_[k - 1].keep;
      is_there[b] = b < keep.size() && keep[b] >= 0 && x[keep[b]] > 0.5;
    }
    for (int32_t s = segment.begin; s <= segment.end; ++s) {
      std::vector<int32_t> want;
      const auto need = [&](int32_t value) {
        const int32_t maker = graph_.values[value].maker;
        if (is_there[value] || runs[maker] || maker >= s) return;
        runs[maker] = 1;
        want.push_back(maker);
      };
      for (const int32_t b : graph_.nodes[s].reads) need(b);
      for (int32_t b = 0; s == segment.end && b < std::ssize(segment.keep); ++b)
        if (segment.keep[b] >= 0 && x[segment.keep[b]] > 0.5) need(b);
      for (int32_t b = 0;
           s + 1 == std::ssize(graph_.nodes) && b < std::ssize(graph_.values);
           ++b)
        if (graph_.values[b].is_returned) need(b);
      for (size_t w = 0; w < want.size(); ++w)
        for (const int32_t b : graph_.nodes[want[w]].reads) need(b);
      std::ranges::sort(want);
      want.push_back(s);
      for (const int32_t n : want) {
        runs[n] = 0;
        for (const int32_t b : graph_.nodes[n].makes) is_there[b] = 1;
      }
      want.pop_back();
      schedule.repeats[s] = std::move(want);
    }
  }
  return schedule;
}

}  // namespace acplan::problems
