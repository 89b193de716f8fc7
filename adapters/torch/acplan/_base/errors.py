"""The error of this package, and its warning."""


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
