#include "problems/engines/milp/joint_start.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

// Rounds units first, then groups.
//
// Units are rounded by their share of the relaxation, and one more of them at a
// time is tried. For given units the groups are found greedily: record by
// record the groups with the most bytes a millisecond; then, the dearest first,
// each group that is not needed is taken back or replaced by a cheaper one.
// Local search then improves the best solution: one unit less, or one in place
// of another. Every solution is checked against all rows, so a start is a plan,
// though not necessarily a good one.
//
// Reduced costs turn a start into bounds. A column at its lower end that rises
// by k costs at least k times its reduced cost more than the relaxation. So in
// a solution that is not worse than the start it can rise by at most (ms -
// bound) / reduced cost, and one at its upper end can fall by as much.

namespace acplan::problems {

using solver::Milp;

namespace {

// The record rows, dense.
struct RecordRows {
  std::vector<double> lower;
  std::vector<std::vector<double>> coefficients;  // by column and row

  size_t size() const { return lower.size(); }

  // Adds `number` of a column to the rows' sums.
  void Move(int column, double number, std::vector<double>& sums) const {
    if (number == 0) return;
    for (size_t r = 0; r < sums.size(); ++r) {
      sums[r] += coefficients[column][r] * number;
    }
  }
};

RecordRows RecordRowsOf(const JointMilp& form) {
  const size_t rows = form.record_rows.size();
  RecordRows dense;
  dense.coefficients.assign(form.milp.columns.size(),
                            std::vector<double>(rows, 0));
  for (size_t r = 0; r < rows; ++r) {
    const Milp::Row& row = form.milp.rows[form.record_rows[r]];
    dense.lower.push_back(row.lower);
    for (const Milp::Term& term : row.terms) {
      dense.coefficients[term.column][r] = term.coefficient;
    }
  }
  return dense;
}

// The groups for given units.
class GroupFilling {
 public:
  // `units` are numbers of units; all groups are 0.
  GroupFilling(const JointMilp& form, const RecordRows& rows,
               std::vector<double> units)
      : rows_(rows), x_(std::move(units)), sums_(rows.size(), 0) {
    for (const JointMilp::UnitClass& c : form.classes) {
      rows_.Move(c.unit_column, x_[c.unit_column], sums_);
      if (x_[c.unit_column] == 0) continue;
      const double members = form.milp.columns[c.unit_column].upper;
      for (const int column : c.kind_columns) {
        if (column < 0) continue;
        const Milp::Column& groups = form.milp.columns[column];
        items_.push_back(
            {column, groups.upper / members * x_[c.unit_column], groups.cost});
      }
    }
  }

  // Adds groups until all records are met. Returns whether they are.
  bool Fill() {
    for (size_t r = 0; r < rows_.size(); ++r) {
      if (sums_[r] < rows_.lower[r] && !Fill(r)) return false;
    }
    return true;
  }

  // Takes back groups that no record needs.
  void TakeBack() {
    std::ranges::sort(items_, std::greater<>(), &Item::cost);
    for (const Item& out : items_) {
      while (x_[out.column] > 0 && MayMove(out, nullptr)) Move(out.column, -1);
      for (size_t k = items_.size(); k-- > 0 && x_[out.column] > 0;) {
        const Item& in = items_[k];
        if (in.cost >= out.cost) break;
        while (x_[out.column] > 0 && x_[in.column] < in.most &&
               MayMove(out, &in)) {
          Move(out.column, -1);
          Move(in.column, 1);
        }
      }
    }
  }

  std::vector<double> Take() { return std::move(x_); }

 private:
  struct Item {
    int column;
    double most;
    double cost;
  };

  bool Fill(size_t r) {
    std::ranges::sort(items_, std::greater<>(), [&](const Item& item) {
      return rows_.coefficients[item.column][r] / item.cost;
    });
    for (const Item& item : items_) {
      const double bytes = rows_.coefficients[item.column][r];
      if (bytes <= 0) continue;
      const double missing = rows_.lower[r] - sums_[r];
      const double number = std::min(item.most - x_[item.column],
                                     std::ceil(missing / bytes - 1e-12));
      if (number <= 0) continue;
      Move(item.column, number);
      if (sums_[r] >= rows_.lower[r]) break;
    }
    return sums_[r] >= rows_.lower[r];
  }

  bool MayMove(const Item& out, const Item* in) const {
    for (size_t r = 0; r < rows_.size(); ++r) {
      const double added_bytes = in ? rows_.coefficients[in->column][r] : 0;
      if (sums_[r] - rows_.coefficients[out.column][r] + added_bytes <
          rows_.lower[r]) {
        return false;
      }
    }
    return true;
  }

  void Move(int column, double number) {
    x_[column] += number;
    rows_.Move(column, number, sums_);
  }

  const RecordRows& rows_;
  std::vector<double> x_;
  std::vector<double> sums_;  // of the rows
  std::vector<Item> items_;
};

class Rounding {
 public:
  explicit Rounding(const JointMilp& form)
      : form_(form), rows_(RecordRowsOf(form)) {}

  std::optional<std::vector<double>> Round(const solver::LpSolution& lp) {
    std::vector<double> x(form_.milp.columns.size(), 0);
    struct Raise {
      double share;
      double reduced_cost;
      int column;
    };
    std::vector<Raise> raises;
    for (const JointMilp::UnitClass& c : form_.classes) {
      const int column = c.unit_column;
      x[column] = std::floor(lp.x[column] + 1e-6);
      raises.push_back({std::max(0.0, lp.x[column] - x[column]),
                        lp.reduced_costs[column], column});
    }
    std::ranges::stable_sort(raises, [](const Raise& a, const Raise& b) {
      return std::pair(-a.share, a.reduced_cost) <
             std::pair(-b.share, b.reduced_cost);
    });
    Try(x);
    for (const auto& [share, reduced_cost, column] : raises) {
      if (share < 1e-6 && best_) break;
      double step = share < 1e-6 ? form_.milp.columns[column].upper : 1;
      for (; step > 0; --step) {
        if (MayAdd(x, column)) x[column] += 1;
      }
      Try(x);
    }
    if (best_) Climb();
    return best_;
  }

 private:
  bool MayAdd(const std::vector<double>& x, int column) const {
    if (x[column] + 1 > form_.milp.columns[column].upper) return false;
    for (const int choice : form_.choice_rows) {
      const Milp::Row& row = form_.milp.rows[choice];
      double sum = 0;
      bool counts = false;
      for (const Milp::Term& term : row.terms) {
        sum += term.coefficient * (x[term.column] + (term.column == column));
        counts |= term.column == column;
      }
      if (counts && sum > row.upper) return false;
    }
    return true;
  }

  // Removes one unit, or replaces one by another, as long as that helps.
  void Climb() {
    constexpr int kMostTries = 400;
    tries_ = 0;
    for (bool better = true; better;) {
      better = false;
      const std::vector<double> from = UnitsOf(*best_);
      for (const JointMilp::UnitClass& out : form_.classes) {
        if (from[out.unit_column] == 0) continue;
        std::vector<double> x = from;
        x[out.unit_column] -= 1;
        better |= Try(x);
        for (const JointMilp::UnitClass& in : form_.classes) {
          if (tries_ > kMostTries) return;
          if (&in == &out || !MayAdd(x, in.unit_column)) continue;
          std::vector<double> swapped = x;
          swapped[in.unit_column] += 1;
          better |= Try(swapped);
        }
      }
    }
  }

  std::vector<double> UnitsOf(const std::vector<double>& x) const {
    std::vector<double> units(x.size(), 0);
    for (const JointMilp::UnitClass& c : form_.classes) {
      units[c.unit_column] = x[c.unit_column];
    }
    return units;
  }

  // Finds the groups for these units. Returns whether that is the best solution
  // so far.
  bool Try(std::vector<double> units) {
    ++tries_;
    GroupFilling filling(form_, rows_, std::move(units));
    if (!filling.Fill()) return false;
    filling.TakeBack();
    std::vector<double> x = filling.Take();
    if (!solver::IsFeasible(form_.milp, x, 1e-12)) return false;
    const double ms = solver::ObjectiveValue(form_.milp, x);
    if (best_ && ms >= best_ms_ * (1 - 1e-12)) return false;
    best_ = std::move(x);
    best_ms_ = ms;
    return true;
  }

  const JointMilp& form_;
  RecordRows rows_;
  std::optional<std::vector<double>> best_;
  double best_ms_ = 0;
  int tries_ = 0;
};

}  // namespace

std::optional<std::vector<double>> RoundedStart(const JointMilp& form,
                                                const solver::LpSolution& lp) {
  return Rounding(form).Round(lp);
}

Milp CoreOf(Milp milp, const solver::LpSolution& lp, double ms) {
  const double room = ms - lp.objective + 1e-7 * std::abs(ms);
  if (room < 0) return milp;
  for (size_t j = 0; j < milp.columns.size(); ++j) {
    Milp::Column& column = milp.columns[j];
    const double price = lp.reduced_costs[j];
    if (!column.is_integer || price == 0) continue;
    const double most = std::floor(room / std::abs(price) + 1e-6);
    if (price > 0) {
      column.upper = std::min(column.upper, column.lower + most);
    } else {
      column.lower = std::max(column.lower, column.upper - most);
    }
  }
  return milp;
}

}  // namespace acplan::problems
