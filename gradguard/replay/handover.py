"""What a resumed run knew at its start, for the diagnoses of another policy as far as it fits them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from gradguard.evidence.running import NormWindow
from gradguard.flow.judgement import Entry, Judgement


def hand_over(state: dict[str, Any], donor: Judgement | None, judgement: Judgement) -> dict[str, Any]:
    """Return a state for `judgement.load_state_dict` from that of a judgement by another policy.

    Windows of another size are filled from the largest that there is. A diagnosis with other options or on other
    parameters starts afresh.

    Args:
        state: what `donor.state_dict` returned.
        donor: a judgement by the policy that the state is from; None when that is not known.
        judgement: who takes it over. By the same policy, all of it.
    """
    own = judgement.state_dict()
    entries = {} if donor is None else dict(zip(map(_key, donor.entries), state["states"], strict=True))
    trackers = {} if donor is None else dict(zip(donor.trackers, state["trackers"], strict=True))
    return {
        **own,
        "windows": {size: _window(size, state["windows"], empty) for size, empty in own["windows"].items()},
        "losses": {size: _losses(size, state["losses"]) for size in own["losses"]},
        "trackers": [
            trackers.get(limit, fresh) for limit, fresh in zip(judgement.trackers, own["trackers"], strict=True)
        ],
        "num_losses": state["num_losses"],
        "first_losses": state["first_losses"],
        "states": [
            entries.get(_key(entry), fresh) for entry, fresh in zip(judgement.entries, own["states"], strict=True)
        ],
        "told": state["told"],
    }


def _key(entry: Entry) -> Hashable:
    return entry.diagnosis.name, entry.diagnosis.model_dump_json(), entry.rows


def _window(size: int, known: dict[int, Any], empty: dict[str, Any]) -> dict[str, Any]:
    if size in known or not known:
        found: dict[str, Any] = known.get(size, empty)
        return found
    largest = known[max(known)]
    ring, steps, position = largest["ring"], int(largest["steps"]), int(largest["position"])
    window = NormWindow(ring.shape[1], size)
    for row in ring[:steps] if steps < len(ring) else np.roll(ring, -position, axis=0):
        window.push(row)
    return window.state_dict()


def _losses(size: int, known: dict[int, Any]) -> dict[str, Any]:
    longest: list[float] = max((window["values"] for window in known.values()), key=len, default=[])
    return {"values": longest[-size:]}
