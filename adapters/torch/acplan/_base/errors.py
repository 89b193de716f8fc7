"""The error of this package, its warning, and other errors as a reason in one line."""


class AcplanError(RuntimeError):
    """An error in the model, the plan or the machine that its user can mend.

    `exit_code` is that of the program `acplan` (docs/command_line.md): 2 for bad input, 3 if no
    plan fits, 4 if a limit came first.
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DependsOnValues(AcplanError):
    """The operators that a model runs depend on values that were not computed."""


class PlanMismatchWarning(UserWarning):
    """A module runs other operators than its plan says; training goes on."""


def first_line(error: BaseException) -> str:
    """Returns the text of another library's error, up to the first line that does not announce
    another."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    count = next((k for k, line in enumerate(lines) if not line.endswith(":")), len(lines))
    return " ".join(lines[: count + 1]) or "no message"


def reason_of(error: BaseException, attempt: str) -> str:
    """Returns the reason why an attempt, such as "the trace", failed: acplan's own words, or
    the attempt with the type and the text of another library's error, which alone may be a bare
    number."""
    if isinstance(error, AcplanError):
        return " ".join(str(error).split())
    return f"{attempt} raised {type(error).__name__}: {first_line(error)}"
