"""How fast the rows of a run come, seen from outside: by when its file was seen to grow."""

from __future__ import annotations

from collections import deque


SEEN_FOR_SEC = 120.0  # growth before that is no measure of the present pace


class Pace:
    """Steps a second from (time, rows) at which the file had grown. Rows come in bursts, so only these times count.

    Attributes:
        last_growth: time of the last growth that was seen, None before the first.
    """

    def __init__(self) -> None:
        self.last_growth: float | None = None
        self._num_rows: int | None = None  # at the last look
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, time: float, num_rows: int) -> None:
        """Take in how many rows there are, at a time in seconds; times rise from call to call."""
        before, self._num_rows = self._num_rows, num_rows
        if before is None or num_rows <= before:  # what was there at the first look is no growth
            return
        self.last_growth = time
        self._seen.append((time, num_rows))
        while len(self._seen) > 2 and time - self._seen[0][0] > SEEN_FOR_SEC:
            self._seen.popleft()

    def rate(self) -> float | None:
        """Return steps a second; None until the file was seen to grow twice.

        Example:
            >>> pace = Pace()
            >>> for second in range(4):
            ...     pace.add(float(second), 64 * second)
            >>> pace.rate()
            64.0
        """
        if len(self._seen) < 2:
            return None
        (first, before), (last, after) = self._seen[0], self._seen[-1]
        return (after - before) / (last - first) if last > first else None
