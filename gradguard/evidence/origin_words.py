"""Where NaN or infinity came into a step, in words, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gradguard.evidence.origin import Origin, Stage


BATCH_ADVICE = (
    "Look at the inputs and targets of this batch, and at the loss function: log(0), a division by zero, exp of a "
    "large number."
)
LOSS_ADVICE = (
    "Look at the loss function and its targets: log(0) or the log of a negative number, a division by zero, exp of a "
    "large number, a target that is NaN. The fused losses (cross_entropy, binary_cross_entropy_with_logits) are safe "
    "from most of it."
)
FORWARD_ADVICE = (
    "Look at what is computed there: sqrt or log of a number that is not above 0, a division by zero, exp of a large "
    "number, or a row of attention that is masked everywhere."
)
WEIGHTS_ADVICE = (
    "The weights themselves are damaged: skipping batches cannot help, only going back to a good state can."
)
BACKWARD_ADVICE = "A finite loss with a NaN gradient comes from sqrt or norm at 0, or a fully masked row."
OVERFLOW_ADVICE = "Numbers of this size overflow when they are multiplied: go back, and lower the learning rate."


def where_it_began(origin: Origin | None) -> str:
    """Return a clause that follows a colon.

    Example:
        >>> where_it_began(Origin("forward", after="c", before="d"))
        "it began between 'c', whose output is finite, and 'd', whose input is not"
        >>> where_it_began(None)
        'where it began is not known'
    """
    if origin is None:
        return "where it began is not known"
    again = "" if origin.seen_at is None else f"most likely as at step {origin.seen_at}, where "
    words: dict[Stage, Callable[[Origin], str]] = {
        "input": _input,
        "weights": _weights,
        "forward": _forward,
        "loss": _loss,
        "backward": _backward,
        "unknown": lambda origin: f"where it began is not known{f' ({origin.why})' if origin.why else ''}",
    }
    return again + words[origin.stage](origin)


def place_of(evidence: Mapping[str, object]) -> str:
    """Return the place where it began, from a finding's evidence, as a noun; "" when it is not known.

    Example:
        >>> place_of({"origin": "forward", "origin_after": "c", "origin_before": "d"})
        "between 'c' and 'd'"
        >>> place_of({"origin": "input", "origin_place": "x"}), place_of({"origin": "loss"}), place_of({})
        ("the input 'x'", 'the loss function', '')
    """
    stage = evidence.get("origin")
    place, after, before = (evidence.get(f"origin_{name}") or "" for name in ("place", "after", "before"))
    if stage == "loss":
        return "the loss function"
    if stage == "input":
        return f"the input {place!r}"
    if stage not in ("forward", "backward", "weights"):
        return ""
    if stage == "backward":
        return f"the backward pass at {place!r}" if place else "the backward pass, near the loss"
    if after and before:
        return f"between {after!r} and {before!r}"
    if before or after:
        return f"before {before!r}" if before else f"behind {after!r}"
    return f"{place!r}" if place else "the model itself"


def what_to_do(origin: Origin | None) -> str:
    """Return the advice that fits, "" when nothing is known."""
    if origin is None:
        return ""
    if origin.stage == "input":
        numbers = ", ".join(map(str, origin.samples)) + (", ..." if origin.num_bad > len(origin.samples) else "")
        places = (
            f" ({'number' if origin.num_bad == 1 else 'numbers'} {numbers} of the batch, from 0)"
            if origin.samples
            else ""
        )
        return f"Look for the samples with NaN or infinite values{places}, and drop them or fill them in."
    if origin.stage in ("forward", "loss") and origin.largest:
        return OVERFLOW_ADVICE
    if origin.stage == "forward":
        return FORWARD_ADVICE
    advice = {"loss": LOSS_ADVICE, "backward": BACKWARD_ADVICE, "weights": WEIGHTS_ADVICE}
    return advice.get(origin.stage, "")


def _input(origin: Origin) -> str:
    name = f"input {origin.place!r}"
    if not origin.num_samples:
        return f"{origin.entries:,} entries of {name} are NaN or infinite"
    verb = "holds" if origin.num_bad == 1 else "hold"
    return f"{origin.num_bad:,} of the {origin.num_samples:,} samples of {name} {verb} NaN or infinite values"


def _weights(origin: Origin) -> str:
    return (
        f"{origin.place!r} holds an entry of size {origin.largest:.3g}, where the others are of size "
        f"{origin.usual:.3g}: a flipped bit, or a weight that was overwritten"
    )


def _forward(origin: Origin) -> str:
    if origin.before:
        if not origin.after:
            return f"it began in what {_module(origin)} computes before {origin.before!r}"
        return f"it began between {origin.after!r}, whose output is finite, and {origin.before!r}, whose input is not"
    if origin.after:
        return f"it began in what {_module(origin)} computes after {origin.after!r}, whose output is finite"
    size = f" (up to {origin.largest:.3g})" if origin.largest else ""
    return f"it began at the output of {_module(origin)}, whose inputs are finite{size}"


def _module(origin: Origin) -> str:
    kind = f" ({origin.kind})" if origin.kind else ""
    return f"{origin.place!r}{kind}" if origin.place else f"the model itself{kind}"


def _loss(origin: Origin) -> str:
    if origin.largest:
        return f"the model's output has exploded (up to {origin.largest:.3g}), and the loss of it overflows"
    where = "in the loss function" if not origin.why else f"in the loss function or {origin.why}"
    likely = "most likely " if origin.is_likely else ""
    return f"the model's output is finite, so it {likely}began {where}"


def _backward(origin: Origin) -> str:
    if origin.place and origin.after:
        return f"it began in the backward pass between {origin.after!r}, whose gradient is finite, and {origin.place!r}"
    if origin.place:
        return f"it began in the backward pass at {origin.place!r}"
    return (
        "it began in the backward pass at the very end of the model or in the loss function, if no clipping of "
        "gradients has spread it"
    )
