"""How the command ends when something is wrong."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from archipel.cli.console import complain, tell


class Commands(TyperGroup):
    """Commands whose errors are one message and an exit code instead of a traceback.

    2: the input is wrong; 1: training diverged; 130: stopped by Ctrl-C.
    """

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, BrokenPipeError):
            raise  # of --help; and of `archipel … | head`, whose reader has gone: nothing is wrong
        except (ValueError, OSError, ImportError) as error:
            complain("Error", str(error))
            raise typer.Exit(2) from None
        except MemoryError as error:
            complain("Out of memory", str(error) or "the run needs more memory than there is.")
            raise typer.Exit(2) from None
        except RuntimeError as error:
            from archipel.algorithm import DivergenceError

            if not isinstance(error, DivergenceError):
                raise
            complain("Training diverged", str(error))
            raise typer.Exit(1) from None
        except KeyboardInterrupt as stop:
            tell(str(stop) or "Stopped. The same command resumes from the last checkpoint.")
            raise typer.Exit(130) from None
