"""The `derex` command: options are parsed by tyro; a command's module is imported when the command is called.

JAX, scikit-learn, orbax and the plotting libraries are imported when a command runs, so that every `--help` is quick.

Exit codes: 0 success; 1 `derex doctor` found a problem; 2 bad input; 130 stopped by Ctrl-C; 141 the reader of stdout
has left (`derex envs | head -1`), as shells report SIGPIPE.
"""

from derex.cli.commands import COMMANDS, main
from derex.cli.parsing import parse

__all__ = ["COMMANDS", "main", "parse"]
