"""The tables of the report, from results alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmarks.zoo.catalogue import ZOO
from benchmarks.zoo.grid import Grid
from benchmarks.zoo.interval import wilson
from benchmarks.zoo.result import RECOVERED, Result
from benchmarks.zoo.scores import OURS, Verdict, contenders, score, verdicts


def grids(results: Sequence[Result]) -> list[Grid]:
    """Return all tables that have something to say; the held-out set-ups have their own."""
    own = [result for result in results if not result.held_out]
    held = [result for result in results if result.held_out]
    found = [
        headline("headline", "how well the trouble is told, ours beside others", own),
        harm("harm", own),
        matrix("matrix", own),
        rival_alarms("rivals", own),
        missed("missed", own),
        healthy("healthy", own),
        headline("heldout", "the same on data, models and optimizers that no threshold was chosen on", held),
        harm("heldout-harm", held),
        matrix("heldout-matrix", held),
        missed("heldout-missed", held),
        healthy("heldout-healthy", held),
    ]
    return [grid for grid in found if grid.rows]


def headline(name: str, title: str, results: Sequence[Result]) -> Grid:
    """Return every contender's score."""
    columns = (
        "rule set",
        "detected",
        "95 %",
        "rightly named",
        "sudden",
        "slow",
        "faults noticed",
        "false alarms",
        "95 %",
        "in 1,000 steps",
    )
    rows = []
    for contender in contenders(results) if results else ():
        own = score(results, contender)
        rows.append(
            (
                contender,
                _part(*own.detected),
                _interval(*own.detected),
                _part(*own.named),
                "-" if own.sudden is None else f"{own.sudden:g}",
                "-" if own.slow is None else f"{100 * own.slow:.0f} %",
                _part(*own.noticed),
                _part(*own.false),
                _interval(*own.false),
                f"{own.rate:.2f}",
            )
        )
    groups = Counter(result.group for result in results)
    runs = ", ".join(f"{count} {group}" for group, count in groups.items())
    notes = (
        f"Runs: {runs}; seeds of a set-up, much alike: {len({result.seed for result in results})}. Intervals: Wilson.",
        "detected: failing runs with an alarm since the trouble began. rightly named: those whose name fits.",
        "sudden: median steps to the first alarm where trouble strikes at once. slow: else, in shares of the budget.",
        "faults noticed: healthy runs that one fault struck. false alarms: healthy runs with any alarm.",
    )
    return Grid(name, title, columns, tuple(rows), notes)


def harm(name: str, results: Sequence[Result]) -> Grid:
    """Return what the guard did to healthy runs."""
    healthy = [result for result in results if result.group == "healthy"]
    if not healthy:
        return Grid(name, "", (), ())
    same = sum(result.is_identical for result in healthy)
    differences = sorted(result.guarded - result.unguarded for result in healthy)
    lost = sum(result.guarded < result.unguarded - RECOVERED * abs(result.unguarded) for result in healthy)
    rows = (
        ("bit-identical with and without the guard", _part(same, len(healthy)), _interval(same, len(healthy))),
        ("largest loss of score", f"{min(0.0, differences[0]):+.4f}", ""),
        ("largest gain of score", f"{max(0.0, differences[-1]):+.4f}", ""),
        (f"score lost by more than {RECOVERED:.0%}", _part(lost, len(healthy)), _interval(lost, len(healthy))),
    )
    return Grid(name, "what the guard does to healthy runs", ("", "runs", "95 %"), rows)


def matrix(name: str, results: Sequence[Result]) -> Grid:
    """Return which of our diagnoses spoke about which failing set-up, and who else did."""
    failing = [result for result in results if result.group == "failing"]
    said = Counter(alarm.diagnosis for result in failing for alarm in result.loud)
    diagnoses = [diagnosis for diagnosis, _ in said.most_common()]
    others = contenders(failing)[1:]
    rows = []
    for id, own in _by_id(failing):
        counts = Counter(alarm.diagnosis for result in own for alarm in result.loud)
        marks = [_mark(counts[diagnosis], len(own), diagnosis in own[0].expected) for diagnosis in diagnoses]
        heard = [sum(verdict.is_detected for verdict in verdicts(own, other)) for other in others]
        named = sum(verdict.is_named for verdict in verdicts(own, OURS))
        rows.append(
            (
                id,
                ZOO[id].title if id in ZOO else "",
                f"{named}/{len(own)}",
                *marks,
                *(f"{count}" if count else "" for count in heard),
            )
        )
    notes = (
        "Runs with the diagnosis at warn or above; * when it names the trouble. Then runs with an alarm of the others.",
    )
    columns = ("id", "set-up", "named", *(_short(d) for d in diagnoses), *(_initials(other) for other in others))
    legend = "; ".join(f"{_initials(other)}: {other}" for other in others)
    return Grid(
        name,
        "which diagnosis catches what",
        columns,
        tuple(rows),
        (*notes, *((legend,) if legend else ())),
        num_words=2,
    )


def rival_alarms(name: str, results: Sequence[Result]) -> Grid:
    """Return what each rule of the others is worth: runs with its alarm, failing and healthy."""
    rows = []
    for contender in contenders(results)[1:] if results else ():
        counts = {group: Counter[str]() for group in ("failing", "healthy")}
        right: Counter[str] = Counter()
        totals: Counter[str] = Counter()
        for verdict in verdicts(results, contender):
            totals[verdict.result.group] += 1
            for alarm in verdict.alarms:
                if verdict.result.group in counts:
                    counts[verdict.result.group][alarm.name] += 1
                    right[alarm.name] += verdict.result.group == "failing" and bool(
                        set(alarm.kinds) & set(verdict.result.expected)
                    )
        for alarm_name in sorted(set().union(*counts.values()), key=lambda n: (-counts["healthy"][n], n)):
            rows.append(
                (
                    contender,
                    alarm_name,
                    f"{counts['failing'][alarm_name]}",
                    f"{right[alarm_name]}",
                    f"{counts['healthy'][alarm_name]}",
                )
            )
    failing, healthy = (sum(result.group == group for result in results) for group in ("failing", "healthy"))
    columns = ("rule set", "rule", f"failing ({failing})", "rightly named", f"healthy ({healthy})")
    return Grid(name, "the rules of the others, one by one: runs with an alarm", columns, tuple(rows), num_words=2)


def missed(name: str, results: Sequence[Result]) -> Grid:
    """Return the failing runs that we said nothing, or something wrong, about, and who spoke."""
    rows = []
    failing = [result for result in results if result.group == "failing"]
    for id, own in _by_id(failing):
        bad = [verdict for verdict in verdicts(own, OURS) if not verdict.is_named]
        if not bad:
            continue
        silent = sum(not verdict.is_detected for verdict in bad)
        said = sorted({alarm.name for verdict in bad for alarm in verdict.alarms})
        others = [other for other in contenders(own)[1:] if any(v.is_named for v in verdicts(own, other))]
        rows.append(
            (
                id,
                ZOO[id].title if id in ZOO else "",
                ", ".join(own[0].expected),
                ", ".join(said),
                f"{silent}/{len(own)}",
                f"{len(bad) - silent}/{len(own)}",
                ", ".join(map(_initials, others)),
            )
        )
    columns = ("id", "set-up", "expected", "said", "silent", "misnamed", "named by")
    return Grid(name, "what is missed, or misnamed", columns, tuple(rows), num_words=4)


def healthy(name: str, results: Sequence[Result]) -> Grid:
    """Return every healthy set-up with its score, and who alarmed."""
    rows = []
    chosen = [result for result in results if result.group == "healthy"]
    others = contenders(chosen)
    for id, own in _by_id(chosen):
        scores = [result.unguarded for result in own]
        alarmed = [_count(verdicts(own, other)) for other in others]
        rows.append(
            (
                id,
                ZOO[id].title if id in ZOO else "",
                f"{own[0].steps}",
                f"{min(scores):.3f}",
                *(f"{count}" if count else "" for count in alarmed),
            )
        )
    columns = ("id", "set-up", "steps", "lowest score", *(_initials(other) for other in others))
    return Grid(name, "healthy set-ups: runs with a false alarm", columns, tuple(rows), num_words=2)


def _count(own: Sequence[Verdict]) -> int:
    return sum(verdict.count > 0 for verdict in own)


def _by_id(results: Sequence[Result]) -> list[tuple[str, list[Result]]]:
    return [(id, [result for result in results if result.id == id]) for id in dict.fromkeys(r.id for r in results)]


def _part(hits: int, total: int) -> str:
    return f"{hits}/{total} ({100 * hits / total:.0f} %)" if total else "-"


def _interval(hits: int, total: int) -> str:
    low, high = wilson(hits, total)
    return f"{100 * low:.0f} to {100 * high:.0f}" if total else "-"


def _mark(count: int, total: int, is_right: bool) -> str:
    return "" if not count else f"{count}{'*' if is_right else ''}" if total > 1 else "*" if is_right else "x"


def _short(diagnosis: str) -> str:
    return diagnosis.replace("_", " ")


def _initials(contender: str) -> str:
    """Return a contender's name for the head of a narrow column.

    Example:
        >>> [_initials(name) for name in ("gradguard", "SageMaker Debugger", "SageMaker, two rules off", "AUTOTRAINER")]
        ['gg', 'SM', 'SM-', 'AT']
    """
    known = {
        "gradguard": "gg",
        "SageMaker Debugger": "SM",
        "SageMaker, two rules off": "SM-",
        "AUTOTRAINER": "AT",
        "DeepDiagnosis": "DD",
        "TheDeepChecker": "DC",
        "torchmortem": "TM",
        "Lightning SpikeDetection": "SD",
        "UMLAUT, inputs and rates": "UM",
    }
    return known.get(contender, contender)
