"""What a replay cannot know about a run, in plain words."""

from __future__ import annotations

from gradguard.contracts import Diagnosis
from gradguard.policy.schema import Policy
from gradguard.replay.recorded import Recorded


MAX_PROBLEMS = 3  # told one by one


def gaps(recorded: Recorded) -> list[str]:
    """Return what is missing in a record, whatever the policy; nothing when it can be replayed exactly."""
    told = recorded.problems[:MAX_PROBLEMS]
    if (more := len(recorded.problems) - MAX_PROBLEMS) > 0:
        told.append(f"{more} more places in the record cannot be read")
    info = recorded.run.info
    if recorded.notes is None:
        told.append(
            "this record was made before replays: weight norms are known at probes only, damaged weights and buffers "
            "and rolled-back windows are not; findings about them may be missing or worded otherwise"
        )
    if lost := info.get("num_rows_lost"):
        told.append(f"the disk did not take {lost} rows: from there on rolling statistics differ")
    if recorded.run.status in ("running", "interrupted"):
        told.append(f"the run is {recorded.run.status}: its last steps may be missing")
    if recorded.policy is None:
        told.append("the run's own policy names something that is not installed here, so its rules cannot be compared")
    broken = [event.message for event in recorded.run.events if event.event == "internal_error"]
    if broken:
        told.append(f"a part of the guard failed in the run and does not in the replay: {broken[0]}")
    return told


def unmeasured(recorded: Recorded, policy: Policy) -> list[str]:
    """Return what a policy reads that the run did not measure, or not as often."""
    was = recorded.policy
    if was is None:
        return []
    told = []
    missing = policy.reads() - was.reads()
    if missing:
        blind = sorted({rule.when.name for rule in policy.rules if _reads(rule.when) & missing})
        told.append(f"{' and '.join(sorted(missing))} were not probed in the run: {', '.join(blind)} may find less")
    monitor, measured = policy.monitor, was.monitor
    if monitor.parameters != measured.parameters:
        told.append(
            f"the run measured the parameters {_patterns(measured.parameters)}; these are judged, not "
            f"{_patterns(monitor.parameters)}"
        )
    if monitor.probe_every != measured.probe_every and (policy.reads() or was.reads()):
        told.append(f"probes came every {measured.probe_every} steps, not every {monitor.probe_every}")
    if monitor.updates != measured.updates and "updates" in policy.reads():
        told.append(f"the run looked at updates {_words(measured.updates)}, not {_words(monitor.updates)}")
    if "microbatches" in policy.needs() - was.needs():
        told.append("micro-batches were not followed in the run: none can be dropped on paper")
    return told


def _reads(condition: object) -> frozenset[str]:
    return condition.reads if isinstance(condition, Diagnosis) else frozenset()


def _words(name: str) -> str:
    return name.replace("_", " ")


def _patterns(patterns: tuple[str, ...]) -> str:
    return " ".join(patterns)
