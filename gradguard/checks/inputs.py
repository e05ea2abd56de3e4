"""Are the inputs of a scale that a network can be fed with?"""

from __future__ import annotations

from collections.abc import Iterator

from gradguard.checklist.facts import Facts, Tensors
from gradguard.checklist.finding import PreflightFinding
from gradguard.evidence.input_scale import MAX_FEATURE_RATIO, looks_like_bytes, scale_problem


CURE = "standardise the inputs: (x - mean) / std, with the numbers of the training set"
SAYS = {
    "constant": "are all the same number",
    "too_large": "are large for a network",
    "too_small": "are tiny for a network",
    "off_centre": "are far from zero for how little they vary",
}


def check(facts: Facts) -> Iterator[PreflightFinding]:
    """Yield a finding for each floating input that is out of scale; integers are tokens or indices and fine."""
    for tensor in facts.inputs:
        if tensor.is_floating and tensor.shape:
            yield from _of(tensor, len(facts.inputs) == 1)


def _of(tensor: Tensors, is_alone: bool) -> Iterator[PreflightFinding]:
    is_mask = len(tensor.shape) > 1 and tensor.num_values <= 1 and tensor.largest <= 0 and tensor.nonfinite
    if is_mask:  # 0 and -inf: an additive attention mask
        return
    problem = scale_problem(tensor.mean, tensor.std, tensor.nonfinite)
    numbers = f"mean {tensor.mean:.3g}, standard deviation {tensor.std:.3g}"
    evidence = {"mean": tensor.mean, "std": tensor.std, "smallest": tensor.smallest, "largest": tensor.largest}
    if problem == "nonfinite":
        yield PreflightFinding(
            severity="critical",
            message=f"{tensor.nonfinite} entries of {tensor.name} are NaN or infinite: the loss will be too.",
            cure="drop or fill these rows before training",
            evidence={**evidence, "nonfinite": tensor.nonfinite},
        )
    elif looks_like_bytes(tensor.smallest, tensor.largest, tensor.is_whole) and problem is not None:
        yield PreflightFinding(
            severity="warn",
            message=f"{_capital(tensor.name)} look like raw pixels, from {tensor.smallest:g} to {tensor.largest:g}.",
            cure="divide them by 255, then subtract the mean and divide by the standard deviation",
            evidence=evidence,
        )
    elif problem is not None:
        # One number a sample, such as a time step, a binary mask, the matrix of a graph, or nothing to compare.
        is_square = not is_alone and len(tensor.shape) == 2 and tensor.shape[0] == tensor.shape[1]
        is_plain = len(tensor.shape) == 1 or tensor.num_values <= 2 or tensor.shape[0] == 1 or is_square
        yield PreflightFinding(
            severity="info" if is_plain else "warn",
            message=f"{_capital(tensor.name)} {SAYS[problem]}: {numbers}.",
            cure=CURE,
            evidence=evidence,
        )
    else:
        yield from _features(tensor)


def _features(tensor: Tensors) -> Iterator[PreflightFinding]:
    largest = max(tensor.feature_stds, default=0.0)
    varying = [std for std in tensor.feature_stds if std > 1e-6 * largest]  # less is rounding: a constant feature
    if varying and max(varying) > MAX_FEATURE_RATIO * min(varying):
        place = tensor.feature_stds.index(max(varying)), tensor.feature_stds.index(min(varying))
        yield PreflightFinding(
            severity="warn",
            message=(
                f"The features of {tensor.name} have very different scales: standard deviation {max(varying):.3g} in "
                f"column {place[0]}, {min(varying):.3g} in column {place[1]}."
            ),
            cure="standardise each column by itself, or the small ones will hardly be seen",
            evidence={"largest_std": max(varying), "smallest_std": min(varying)},
        )


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]
