"""The `derex` command: one module for each of its commands, imported when it is asked for.

Options are parsed by tyro. JAX, scikit-learn, orbax and the plotting libraries are imported when a command runs, so
that every `--help` is quick.

Exit codes: 0 done; 1 `derex doctor` found something broken; 2 bad input; 130 stopped by Ctrl-C; 141 whoever read
what it printed has left (`derex envs | head -1`), as the shell has it for SIGPIPE.
"""

from derex.cli.commands import COMMANDS, main
from derex.cli.parsing import parse

__all__ = ["COMMANDS", "main", "parse"]
