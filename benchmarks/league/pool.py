"""Carries out many runs, in this process or in several, each on one thread."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch
from loguru import logger

from benchmarks.league.run import Run, run


Task = tuple[str, str, str, int]  # task, condition, entrant, seed


def run_all(tasks: Sequence[Task], num_steps: int, jobs: int) -> Iterator[Run]:
    """Yield the runs as they come; one job runs here, without a process of its own."""
    if jobs == 1:
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            for task in tasks:
                yield run(*task, num_steps)
        finally:
            torch.set_num_threads(num_threads)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare) as pool:
        for future in as_completed([pool.submit(run, *task, num_steps) for task in tasks]):
            yield future.result()


def _prepare() -> None:
    torch.set_num_threads(1)
    logger.remove()
