"""The first module that the package imports: says what to do where PyTorch is not installed."""

import importlib.util
import os
import sys


def require_torch() -> None:
    """Raises ModuleNotFoundError if PyTorch is not installed. The commands of the package end
    with the same text, without a traceback."""
    if importlib.util.find_spec("torch") is not None:
        return
    text = f"{sys.executable} has no package torch: pip install torch"
    # Python's name for a module that it has yet to find, and the script of the package.
    if os.path.basename(sys.argv[0]) in ("-m", "acplan-torch"):
        print(f"acplan: torch: {text}", file=sys.stderr)
        raise SystemExit(2)
    raise ModuleNotFoundError(f"acplan: {text}", name="torch")
