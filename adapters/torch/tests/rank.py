"""Runs a script as one process of a group, and ends the process where the script ends.

A module that `fully_shard` has sharded keeps its process group after `destroy_process_group`
(seen with PyTorch 2.13, without any plan). The group's threads then run while the interpreter
ends, which now and then ends the process by SIGABRT, with "terminate called without an
active exception", after all that the script has to do.
"""

import os
import pathlib
import runpy
import sys
from typing import NoReturn


def leave() -> NoReturn:
    """Ends this process, before the interpreter is taken apart."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = str(pathlib.Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
    leave()
