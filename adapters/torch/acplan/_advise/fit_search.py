"""The search of acplan.what_fits over combinations of levers.

The state that a combination needs whatever its plan is computed from its parameters; if that is
more than the device has, nothing else is done. The needs of the others are estimated from
traces of few layers. Then they are traced, those of a kind of change that train fastest by
estimate first, until one of that kind fits, however long it takes, so that a slow machine finds
the same answer. In the time that is left, others are traced, and estimates remain of those that
are not. A combination that does not fit by its trace is traced again with as many parts of the
microbatch as its least budget says.
"""

from collections import deque
from collections.abc import Callable

from acplan._advise.bench import Attempt, Bench, Case
from acplan._advise.candidates import Candidate, Clock, candidates
from acplan._advise.combinations import Combination
from acplan._advise.estimates import LITTLE, Estimator
from acplan._advise.fits import Fit, Miss
from acplan._advise.levers import CHANGES
from acplan._base.errors import reason_of
from acplan._files.display import size

_MOST_MISSES = 3  # of a kind of change, after which no more are traced than time allows


class Search:
    """A search, which ends soon after so many seconds; `tick` is called after each trace."""

    def __init__(self, bench: Bench, seconds: float, tick: Callable[[], object]) -> None:
        self._bench = bench
        self._estimator = Estimator(bench)
        self._clock = Clock.started(seconds)
        self._tick = tick
        self.fits: dict[Combination, Attempt] = {}
        self.estimated: dict[Combination, Candidate] = {}
        self.misses: list[Miss] = []
        # True if some combination fits by estimate.
        self._is_fit_expected = False
        # The case with the least budget, of those that do not fit.
        self.closest: Attempt | None = None
        # The least bytes beside the state that both passes and the update need, by the kind of
        # combinations that do not fit in any number of parts.
        self._least_bytes_of_passes: dict[tuple[str, ...], int] = {}
        # The relative errors of estimates of memory and of rates, where there is a trace.
        self._errors: list[tuple[float, float]] = []

    def run(self) -> None:
        queues = {change: deque[Candidate]() for change in CHANGES}
        results = list(candidates(self._bench, self._estimator))
        self.misses += [result for result in results if isinstance(result, Miss)]
        possible = [result for result in results if isinstance(result, Candidate)]
        self._is_fit_expected = any(c.estimate and c.estimate.fits for c in possible)
        for candidate in sorted(possible, key=lambda candidate: candidate.order):
            queues[candidate.combination.change].append(candidate)
        for queue in queues.values():
            for _ in range(_MOST_MISSES):
                if queue and self._try(queue.popleft(), is_needed=True):
                    break
        for queue in queues.values():
            while queue:
                self._try(queue.popleft(), is_needed=False)
        if not self.fits and self.closest is None:
            self._trace_smallest()
        self._refine()

    def ranked(self) -> list[Fit]:
        """Returns what fits, the mildest first, then what is traced, and then by rate."""
        fits = [attempt.fit for attempt in self.fits.values() if attempt.fit is not None]
        fits += [self._estimated_fit(candidate) for candidate in self.estimated.values()]
        return sorted(
            fits,
            key=lambda fit: (CHANGES.index(fit.change), not fit.is_traced, -fit.per_second),
        )

    def about_estimates(self) -> str:
        """Says where estimates come from and how far they were from traces."""
        text = f"estimated: from {self._estimator.how}"
        if not self._errors:
            return text + ", none of which could be compared with a trace of all"
        memory, rate = (max(errors) for errors in zip(*self._errors))
        return (
            f"{text}; traces of all, of {len(self._errors)} settings, differ from such "
            f"estimates by at most {100 * memory:.1f}% of memory and {100 * rate:.1f}% of rates"
        )

    def _estimated_fit(self, candidate: Candidate) -> Fit:
        estimate = candidate.estimate
        assert estimate is not None
        case = Case(candidate.combination, estimate.parts, candidate.state)
        return self._bench.estimated(
            case, estimate.peak_bytes, estimate.step_ms, estimate.added_ms
        )

    # --- Traces

    def _try(self, candidate: Candidate, is_needed: bool) -> bool:
        """Traces the combination, or lets its estimate remain if that is not needed or the time
        is over. Returns whether it fits."""
        combination, estimate = candidate.combination, candidate.estimate
        if self._is_covered(combination):
            self.misses.append(Miss(combination, "milder ones fit already", is_skipped=True))
            return False
        why_not = self._reason_against(candidate, is_needed)
        if why_not:
            if estimate is not None and estimate.fits:
                self.estimated[combination] = candidate
                return True
            self.misses.append(Miss(combination, why_not, is_skipped=True))
            return False
        first_parts = 1 if estimate is None else estimate.parts
        try:
            self._find_parts(Case(combination, first_parts, candidate.state))
            self._compare(candidate)
        except Exception as error:  # raised by the model, or by another library
            self._add_error(combination, error)
        return combination in self.fits

    def _reason_against(self, candidate: Candidate, is_needed: bool) -> str:
        """Says why the combination is not traced; returns "" if it is."""
        combination, estimate = candidate.combination, candidate.estimate
        seconds = self._estimator.trace_seconds(combination)
        # A second trace of a very large model would take longer than all others.
        is_needed = is_needed and not (self.fits and seconds > self._clock.seconds / 2)
        if estimate is not None and not estimate.fits and self._is_fit_expected:
            return "they do not fit by estimate"
        passes = self._least_bytes_of_passes.get(combination.kind, 0)
        if passes + candidate.state.device > self._bench.limit.total_bytes:
            return "they need more than others that do not fit"
        if not is_needed and self._clock.is_over(more=seconds):
            return "the time was over"
        return ""

    def _add_error(self, combination: Combination, error: Exception) -> None:
        why = reason_of(error, "tracing the step with it")
        self.misses.append(Miss(combination, why))

    def _compare(self, candidate: Candidate) -> None:
        """Notes how far the estimate was from the trace, if it has as many parts."""
        attempt, estimate = self.fits.get(candidate.combination), candidate.estimate
        if attempt is None or attempt.fit is None or estimate is None:
            return
        if attempt.case.parts == estimate.parts:
            expected = estimate.iteration_ms
            memory = abs(estimate.plain_bytes / attempt.traced.peak_bytes - 1)
            self._errors.append((memory, abs(attempt.fit.step_ms / expected - 1)))

    def _is_covered(self, combination: Combination) -> bool:
        """Returns whether a milder one fits, and adds so little that more memory could bring
        nothing."""
        return any(
            fit.added_share < LITTLE and other.is_milder_than(combination)
            for other, attempt in self.fits.items()
            if (fit := attempt.fit) is not None
        )

    def _attempt(self, case: Case) -> Attempt:
        attempt = self._bench.attempt(case)
        self._tick()
        if attempt.least_bytes and (
            self.closest is None or attempt.least_bytes < self.closest.least_bytes
        ):
            self.closest = attempt
        return attempt

    def _find_parts(self, case: Case) -> None:
        """Traces the case with more parts until it fits, or has no more."""
        while True:
            attempt = self._attempt(case)
            if attempt.fit is not None:
                self.fits[case.combination] = attempt
                return
            more = self._bench.parts_after(case.parts, attempt.least_bytes, case.state)
            if more is None:
                break
            case = Case(case.combination, more, case.state)
        fit = self._bench.offloaded(attempt)
        if fit is not None:
            self.fits[case.combination] = Attempt(case, attempt.traced, fit)
            return
        own_bytes = attempt.least_bytes - case.state.device
        self._least_bytes_of_passes.setdefault(case.combination.kind, own_bytes)
        batch = self._bench.batch
        size_text = "" if batch is None else f" of {batch // case.parts}"
        why = f"the best plan with microbatches{size_text} needs {size(attempt.least_bytes)}"
        self.misses.append(Miss(case.combination, why, attempt.least_bytes, True))

    def _trace_smallest(self) -> None:
        """Traces the combination with the smallest state, so that there is a figure if nothing
        fits."""
        misses = [miss for miss in self.misses if miss.least_bytes is not None]
        if not misses:
            return
        smallest = min(misses, key=lambda miss: miss.least_bytes or 0).combination
        try:
            state = self._bench.state_of(smallest)
            parts = 1 if state.is_early else self._bench.parts[-1]
            self._attempt(Case(smallest, parts, state))
        except Exception as error:  # raised by the model, or by another library
            self._add_error(smallest, error)

    def _refine(self) -> None:
        """Traces more parts of the microbatch where a plan adds much, as long as that is
        faster."""
        for combination, attempt in list(self.fits.items()):
            best = attempt
            while (faster := self._faster(best)) is not None:
                self.fits[combination] = best = faster

    def _faster(self, attempt: Attempt) -> Attempt | None:
        """Returns the case in more parts if its plan adds much and that is faster."""
        fit, case = attempt.fit, attempt.case
        parts = [] if case.state.is_early else self._bench.parts
        more = [n for n in parts if n > case.parts]
        seconds = self._estimator.trace_seconds(case.combination)
        is_over = self._clock.is_over(more=seconds)
        if fit is None or fit.added_share <= LITTLE or not more or is_over:
            return None
        try:
            in_parts = self._attempt(Case(case.combination, more[0], case.state))
        except Exception:  # of a model that does not run with so few samples: the fit remains
            return None
        is_faster = in_parts.fit is not None and in_parts.fit.per_second > fit.per_second
        return in_parts if is_faster else None
