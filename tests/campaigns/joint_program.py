"""The kept buffers of a compiled step as a mixed-integer program of its graph alone.

Written from docs/file_formats.md (joint graph), without a look at how acplan finds its answer.
The rows state all that follows from the kept buffers in both directions, so that a solution is
a step as it would run.

Columns, of buffers b that nodes of stage forward or either make and forward does not
return, of those nodes o, and of batches j: the nodes that run again before the backward node j,
the last for the buffers that backward returns.

    is_kept[b]       kept, and needed by backward
    is_needed[b][j]  before j or earlier backward needed b
    is_missed[b][j]  the same, and it is not kept
    has_run[o][j]    o ran in backward, in batch j or earlier
    early[o]         o of stage either runs in forward
    both[o]          o of stage either runs in both passes

The live bytes are bounded from below at every moment that there may be. A moment of a node that
does not run there holds at most as much as one before or after it that does.
"""

from typing import Any

from programs import Program, Terms

Json = dict[str, Any]


class JointProgram(Program):
    """The least recomputation within `budget` bytes at the peak and `most_kept` kept; with
    `budget` None the least peak."""

    def __init__(self, graph: Json, budget: int | None, most_kept: int | None = None) -> None:
        super().__init__()
        self.graph = graph
        self.nodes = graph["nodes"]
        self.bytes = [b["bytes"] for b in graph["buffers"]]
        self.maker = {b: n for n, node in enumerate(self.nodes) for b in node["makes"]}
        self.forward_outputs = set(graph["forward_outputs"])
        self.early_nodes = [n for n in range(len(self.nodes)) if not self._is(n, "backward")]
        self.backward_nodes = [n for n in range(len(self.nodes)) if self._is(n, "backward")]
        self.values = [
            b
            for n in self.early_nodes
            for b in self.nodes[n]["makes"]
            if b not in self.forward_outputs
        ]
        # The buffers that each batch is for.
        self.reads = [self.nodes[n]["reads"] for n in self.backward_nodes]
        self.reads.append(graph["backward_outputs"])
        self.batches = len(self.reads)
        self.is_least_peak = budget is None
        self.peak = self.number(1.0, 0, 2.0**53) if budget is None else -1
        self.budget = budget or 0
        self._add_columns()
        self._add_needs()
        self._add_early_runs()
        self._add_ties()
        self._add_forward()
        self._add_backward()
        if most_kept is not None:
            self.row([(self.is_kept[b], self.bytes[b]) for b in self.values], upper=most_kept)

    def _is(self, node: int, stage: str) -> bool:
        return bool(self.nodes[node]["stage"] == stage)

    def _cost(self, node: int) -> float:
        return 0.0 if self.is_least_peak else float(self.nodes[node]["ms"])

    def _add_columns(self) -> None:
        def may_keep(b: int) -> bool:
            return self.graph["buffers"][b].get("keep", True)

        self.is_kept = {b: self.binary(upper=may_keep(b)) for b in self.values}
        each = range(self.batches)
        self.is_needed = {b: [self.binary() for _ in each] for b in self.values}
        self.is_missed = {b: [self.binary() for _ in each] for b in self.values}
        self.has_run: dict[int, list[int]] = {}
        self.early: dict[int, int] = {}
        for n in self.early_nodes:
            may = self.nodes[n].get("again", True)
            is_forward = self._is(n, "forward")
            self.has_run[n] = [
                self.binary(
                    self._cost(n) if is_forward and j == self.batches - 1 else 0.0,
                    upper=may,
                )
                for j in each
            ]
            if not is_forward:
                self.early[n] = self.binary()
                both = self.binary(self._cost(n))
                self.row([(both, 1), (self.early[n], -1), (self.has_run[n][-1], -1)], lower=-1)

    def _readers(self, b: int) -> list[int]:
        return [n for n in self.early_nodes if b in self.nodes[n]["reads"]]

    def _add_needs(self) -> None:
        for b in self.values:
            # A buffer that is kept and not needed counts as not kept.
            self.row([(self.is_kept[b], 1), (self.is_needed[b][-1], -1)], upper=0)
            for j in range(self.batches):
                is_needed, is_missed = self.is_needed[b][j], self.is_missed[b][j]
                runs_of_readers = [self.has_run[n][j] for n in self._readers(b)]
                if any(b in reads for reads in self.reads[: j + 1]):
                    self.row([(is_needed, 1)], lower=1)
                else:
                    self.is_any(is_needed, runs_of_readers)
                self.row([(is_missed, 1), (is_needed, -1), (self.is_kept[b], 1)], lower=0)
                self.row([(is_missed, 1), (is_needed, -1)], upper=0)
                self.row([(is_missed, 1), (self.is_kept[b], 1)], upper=1)
        for n in self.early_nodes:
            values = [b for b in self.nodes[n]["makes"] if b in self.is_kept]
            for j in range(self.batches):
                self.is_any(self.has_run[n][j], [self.is_missed[b][j] for b in values])

    def _add_early_runs(self) -> None:
        for n, early in self.early.items():
            makes = self.nodes[n]["makes"]
            reasons = [self.is_kept[b] for b in makes]
            reasons += [self.early[r] for b in makes for r in self._readers(b)]
            self.is_any(early, reasons)

    def _add_ties(self) -> None:
        """Adds rows for tied nodes: of their results at the same place, none is kept if one is
        missed."""
        tied_results: dict[tuple[int, int], list[int]] = {}
        for n in self.early_nodes:
            first = self.nodes[n].get("tied_to", n)
            for place, b in enumerate(self.nodes[n]["makes"]):
                if b in self.is_kept:
                    tied_results.setdefault((first, place), []).append(b)
        for values in tied_results.values():
            for a in values:
                for b in values:
                    if a != b:
                        self.row([(self.is_kept[a], 1), (self.is_missed[b][-1], 1)], upper=1)

    def _add_moment(self, fixed: float, terms: Terms) -> None:
        """Adds the row of a moment: at most the budget."""
        if self.is_least_peak:
            self.row([(self.peak, 1), *((c, -v) for c, v in terms)], lower=fixed)
        else:
            self.row(terms, upper=self.budget - fixed)

    def _always(self) -> float:
        inputs = (
            self.bytes[b]
            for b, buffer in enumerate(self.graph["buffers"])
            if b not in self.maker and buffer.get("from") != "backward"
        )
        return float(self.graph.get("held_bytes", 0) + sum(inputs))

    def _add_forward(self) -> None:
        for n in self.early_nodes:
            fixed = self._always()
            terms: Terms = []
            scratch = self.nodes[n].get("scratch", 0)
            if self._is(n, "forward"):
                fixed += scratch
            else:
                terms.append((self.early[n], scratch))
            for m in self.early_nodes:
                if m > n:
                    break
                for b in self.nodes[m]["makes"]:
                    fixed += self._live_in_forward(b, m, n, terms)
            self._add_moment(fixed, terms)

    def _live_in_forward(self, b: int, maker: int, at: int, terms: Terms) -> float:
        """Returns the bytes of the buffer if they are known, or adds a column for them."""
        readers = [n for n in self._readers(b) if n >= at]
        is_made_here = maker == at
        if maker not in self.early:
            is_known = is_made_here or b in self.forward_outputs
            if is_known or any(n not in self.early for n in readers):
                return float(self.bytes[b])
        live = self.number()
        reasons = [self.early[n] for n in readers]
        if b in self.is_kept:
            reasons.append(self.is_kept[b])
        if maker in self.early and is_made_here:
            reasons.append(self.early[maker])
        self.at_least_all(live, reasons)
        terms.append((live, self.bytes[b]))
        return 0.0

    def _add_backward(self) -> None:
        returned = [b for b in self.forward_outputs if b in self.maker]
        always = self._always() + sum(self.bytes[b] for b in returned)
        for j in range(self.batches):
            own = always + self._live_of_backward(j)
            for n in self.early_nodes:
                runs = self._runs_in(n, j)
                makes = self.nodes[n]["makes"]
                own_bytes = self.nodes[n].get("scratch", 0)
                own_bytes += sum(self.bytes[b] for b in makes)
                terms: Terms = [(column, sign * own_bytes) for column, sign in runs]
                fixed = own - self._only_at(j)
                for b in self.values:
                    self._add_live_in_backward(b, j, n, terms)
                self._add_moment(fixed, terms)
            if j < len(self.backward_nodes):
                terms = []
                fixed = own + self.nodes[self.backward_nodes[j]].get("scratch", 0)
                for b in self.values:
                    self._add_live_in_backward(b, j, None, terms)
                self._add_moment(fixed, terms)

    def _runs_in(self, n: int, j: int) -> list[tuple[int, int]]:
        """Returns whether a node runs again in a batch, as a sum."""
        now = [(self.has_run[n][j], 1)]
        return now if j == 0 else [*now, (self.has_run[n][j - 1], -1)]

    def _live_of_backward(self, j: int) -> float:
        """Returns the bytes of buffers that come with backward or are made there, at the
        backward node j; those that it makes are there while it runs."""
        total = 0.0
        for b in range(len(self.bytes)):
            maker = self.maker.get(b)
            if maker is None:
                if self.graph["buffers"][b].get("from") != "backward":
                    continue
                born = 0
            elif self._is(maker, "backward"):
                born = self.backward_nodes.index(maker)
            else:
                continue
            last = max((k for k, reads in enumerate(self.reads) if b in reads), default=-1)
            if maker is not None:
                last = max(last, born)
            if born <= j <= last:
                total += self.bytes[b]
        return total

    def _only_at(self, j: int) -> float:
        """Returns the bytes that the backward node j makes, which are not there before."""
        if j == len(self.backward_nodes):
            return 0.0
        makes = self.nodes[self.backward_nodes[j]]["makes"]
        return float(sum(self.bytes[b] for b in makes))

    def _add_live_in_backward(self, b: int, j: int, at: int | None, terms: Terms) -> None:
        """Adds the bytes of a buffer while `at` runs again in batch j, or while its backward
        node runs (None): kept or made again before, and read then or later. The results of `at`
        itself are counted with it, except for a kept copy."""
        is_read = any(b in reads for reads in self.reads[j:])
        maker = self.maker[b]
        copies: list[list[tuple[int, int]]] = [[(self.is_kept[b], 1)]]
        # Made again in this batch or before, and not kept.
        batch = j if at is None or maker < at else j - 1
        if batch >= 0:
            copies.append([(self.has_run[maker][batch], 1), (self.is_kept[b], -1)])
        live = self.number()
        for terms_of in copies:
            if is_read:
                self.row([(live, 1), *((c, -s) for c, s in terms_of)], lower=0)
                continue
            for later in self._later_reads(b, j, at):
                both = [(live, 1), *((c, -s) for c, s in (*terms_of, *later))]
                self.row(both, lower=-1)
        terms.append((live, self.bytes[b]))

    def _later_reads(self, b: int, j: int, at: int | None) -> list[list[tuple[int, int]]]:
        """Returns terms for each node that reads the buffer: 1 if it runs again then or
        later."""
        terms_by_reader = []
        for n in self._readers(b):
            before = self.has_run[n][j] if at is None or n < at else None
            if before is None and j > 0:
                before = self.has_run[n][j - 1]
            ends = [(self.has_run[n][-1], 1)]
            terms_by_reader.append(ends if before is None else [*ends, (before, -1)])
        return terms_by_reader
