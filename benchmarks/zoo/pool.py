"""Runs several set-ups at a time, each in a process and on a thread of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

import torch
from loguru import logger


T = TypeVar("T")


def run_all(
    job: Callable[[str, int], T], tasks: Sequence[tuple[str, int]], jobs: int
) -> Iterator[tuple[tuple[str, int], T]]:
    """Yield (id, seed) pairs with what a job makes of them, as they come, from so many processes.

    Set-ups hold functions that cannot be sent to a process: the job takes their ids.
    """
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _prepare) as pool:
        futures = {pool.submit(job, id, seed): (id, seed) for id, seed in tasks}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _prepare() -> None:
    torch.set_num_threads(1)
    logger.remove()
