"""Mixed-integer programs for HiGHS."""

import math

import highspy

Terms = list[tuple[int, float]]
# A status (optimal, infeasible or unproven) and the objective.
Answer = tuple[str, float | None]

_SECONDS = 60.0


class Program:
    """A minimisation, built column by column and row by row."""

    def __init__(self) -> None:
        self._highs = highspy.Highs()
        self._highs.silent()
        self._columns = 0

    def binary(self, cost: float = 0.0, lower: int = 0, upper: int = 1) -> int:
        column = self.number(cost, lower, upper)
        self._highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        return column

    def number(self, cost: float = 0.0, lower: float = 0.0, upper: float = 1.0) -> int:
        self._highs.addCol(cost, lower, upper, 0, [], [])
        self._columns += 1
        return self._columns - 1

    def row(self, terms: Terms, lower: float = -math.inf, upper: float = math.inf) -> None:
        """Adds a row. Terms of the same column are added up."""
        sums: dict[int, float] = {}
        for column, value in terms:
            sums[column] = sums.get(column, 0.0) + value
        columns, values = list(sums), list(sums.values())
        self._highs.addRow(lower, upper, len(columns), columns, values)

    def at_least_all(self, column: int, others: list[int]) -> None:
        for other in others:
            self.row([(column, 1), (other, -1)], lower=0)

    def is_any(self, column: int, others: list[int]) -> None:
        """Requires that the column is 1 if one of the others is, else 0."""
        self.at_least_all(column, others)
        self.row([(column, 1), *((other, -1) for other in others)], upper=0)

    def solve(self) -> Answer:
        for name, value in {
            "threads": 1,
            "time_limit": _SECONDS,
            "mip_rel_gap": 0.0,
            "mip_abs_gap": 1e-9,
            "mip_feasibility_tolerance": 1e-9,
            "primal_feasibility_tolerance": 1e-9,
        }.items():
            self._highs.setOptionValue(name, value)
        self._highs.run()
        status = self._highs.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return "infeasible", None
        if status != highspy.HighsModelStatus.kOptimal:
            return "unproven", None
        return "optimal", self._highs.getInfo().objective_function_value
