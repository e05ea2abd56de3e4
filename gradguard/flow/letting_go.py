"""A guard whose optimizer nobody uses any more: nothing may keep it alive, and it leaves nothing on the model.

hooks on the model -> parts of the guard -> (weakly) the guard <-> the optimizer
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from gradguard.flow.pipeline import Pipeline
    from gradguard.record.recorder import Recorder

Report = Callable[[str, Exception], None]


def weakly(report: Report) -> Report:
    """Return a function that calls a method for as long as the object is there.

    Args:
        report: a bound method that takes (what failed, error).
    """
    method = weakref.WeakMethod(report)

    def call(what: str, error: Exception) -> None:
        if (alive := method()) is not None:
            alive(what, error)

    return call


def flush(pipeline: weakref.ref[Pipeline], recorder: Recorder) -> None:
    """Hand over to the disk what an open guard knows when the interpreter ends.

    Args:
        pipeline: of the guard, if that is still there.
        recorder: whoever may call this keeps it, and so its files, out of the garbage that the guard becomes: they are
            open when `leave` needs them.
    """
    if (alive := pipeline()) is not None:
        alive.flush()


def leave(pipeline: Pipeline) -> None:
    """End the record and take the hooks off, without a last look: the model may be in other hands by now.

    Nothing is logged: this runs whenever the garbage collector does, maybe within a call of the logger.
    """
    if sys.is_finalizing():
        return
    pipeline.let_go()
    pipeline.flush()
    if (directory := pipeline.recorder.directory) is not None:
        with contextlib.suppress(OSError, ValueError):
            directory.finish()
