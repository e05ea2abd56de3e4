"""One story instead of many alarms: what a finding is a consequence of.

An explosion kills units, dead units stop the learning: each is found for itself, later, by a diagnosis of its own that
knows what it may follow from (`Diagnosis.follows`). A cause must still go on: a spike that was dealt with long
before explains nothing, units that died then do (`Diagnosis.lasts`).
"""

from __future__ import annotations

from collections.abc import Sequence

from gradguard.contracts import DIAGNOSES, PASSES, Diagnosis
from gradguard.records import Cause, Finding


class Story:
    """Remembers when what was found, and names the cause of what comes after.

    Attributes:
        told: {diagnosis: step at which it was last found at severity "warn" or above}, oldest first.
    """

    def __init__(self) -> None:
        self.told: dict[str, int] = {}
        self.lasts = {diagnosis.name: diagnosis.lasts for diagnosis in DIAGNOSES}

    def tell(self, found: Sequence[tuple[type[Diagnosis], Finding]]) -> list[Finding]:  # type: ignore[type-arg]
        """Return one step's findings, in the order given, each with its cause.

        Of several possible causes the latest one counts; in one step, what has precedence causes the rest.

        Args:
            found: (diagnosis, finding) pairs of one step.
        """
        linked: dict[int, Finding] = {}
        for index in sorted(range(len(found)), key=lambda index: (found[index][0].precedence, index)):
            diagnosis, finding = found[index]
            linked[index] = self._link(diagnosis, finding)
            if finding.severity != "info":
                self.told.pop(finding.diagnosis, None)
                self.told[finding.diagnosis] = finding.step
        return [linked[index] for index in range(len(found))]

    def _link(self, diagnosis: type[Diagnosis], finding: Finding) -> Finding:  # type: ignore[type-arg]
        told = [name for name in self.told if name in diagnosis.follows and self._goes_on(name, finding.step)]
        if not told:
            return finding
        return finding.model_copy(update={"follows": Cause(diagnosis=told[-1], step=self.told[told[-1]])})

    def _goes_on(self, name: str, step: int) -> bool:
        return step - self.told[name] <= self.lasts.get(name, PASSES)
