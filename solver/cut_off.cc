#include "solver/cut_off.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace acplan::solver {

Milp WithCutOff(Milp milp, int row, const std::vector<double>& x) {
  const Milp::Row broken = milp.rows[static_cast<size_t>(row)];
  double sum = 0;
  for (const Milp::Term& term : broken.terms) {
    sum += term.coefficient * x[static_cast<size_t>(term.column)];
  }
  const bool below =
      std::isfinite(broken.lower) &&
      !(std::isfinite(broken.upper) && sum - broken.upper > broken.lower - sum);
  Milp::Row cut{.name = fmt::format("cut{}", milp.rows.size()), .lower = 1};
  for (const Milp::Term& term : broken.terms) {
    if (term.coefficient == 0) continue;
    const Milp::Column column = milp.columns[static_cast<size_t>(term.column)];
    const double value = std::round(x[static_cast<size_t>(term.column)]);
    const bool rise = (term.coefficient > 0) == below;
    const double room = rise ? column.upper - value : value - column.lower;
    if (room < 1) continue;
    // The distance from the far bound to the first value that helps.
    const double steps =
        rise ? value + 1 - column.lower : column.upper - value + 1;
    if (steps == 1) {
      cut.terms.push_back({term.column, rise ? 1.0 : -1.0});
      cut.lower += rise ? column.lower : -column.upper;
      continue;
    }
    const int helps = milp.AddColumn(
        {.name = fmt::format("helps{}_{}", milp.rows.size(), term.column),
         .upper = 1,
         .is_integer = true});
    milp.AddRow(
        {.name = fmt::format("step{}_{}", milp.rows.size(), term.column),
         .lower = rise ? column.lower : -kInfinity,
         .upper = rise ? kInfinity : column.upper,
         .terms = {{term.column, 1}, {helps, rise ? -steps : steps}}});
    cut.terms.push_back({helps, 1});
  }
  milp.AddRow(std::move(cut));
  return milp;
}

}  // namespace acplan::solver
