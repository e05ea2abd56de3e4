"""Runs several set-ups at a time, each in a process and on a thread of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from loguru import logger

from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.result import Result, run


def run_all(tasks: Sequence[tuple[str, int]], policy: str, jobs: int, with_rivals: bool = True) -> Iterator[Result]:
    """Yield the results of (id, seed) pairs as they come, from so many processes."""
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare) as pool:
        for future in as_completed([pool.submit(_run, id, seed, policy, with_rivals) for id, seed in tasks]):
            yield future.result()


def _run(id: str, seed: int, policy: str, with_rivals: bool) -> Result:
    """Run a set-up by its id: set-ups hold functions that cannot be sent to a process."""
    return run(ZOO[id], seed, policy, with_rivals)


def _prepare() -> None:
    torch.set_num_threads(1)
    logger.remove()
