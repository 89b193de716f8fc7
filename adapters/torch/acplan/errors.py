"""The one error of this package."""


class AcplanError(RuntimeError):
    """Something about the model, the plan or the machine that its user can mend."""
