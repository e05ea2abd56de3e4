"""Begin dead units anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from gradguard.contracts import REMEDIES, Remedy, Unavailable
from gradguard.records import Change, Finding


if TYPE_CHECKING:
    from gradguard.evidence.probe_stats import Activations
    from gradguard.flow.target import Target
    from gradguard.model.module_chain import Neighbours

NEVER = frozenset({"input", "output", "softmax", "log_softmax"})


@REMEDIES.register
class ReviveUnits(Remedy):
    """Recycle units that gave 0 for every sample of the last probe: fresh weights in, 0 out, optimizer state anew.

    Args:
        seed: of the fresh weights, together with the step, >= 0.

    The model computes what it did before, but for what little a dormant GELU gave. Linear layers and plain convolutions
    in a Sequential, where it is sure which layer feeds which; others are left alone, and the record says why. The step
    is dropped: its gradients are those of the old weights.
    """

    name = "revive_units"
    kind = "surgery"
    rank = 30
    timing = "late"
    needs = frozenset({"buffers", "dead_units"})
    what = "Dead units get a second start without disturbing those that live."
    computed = (
        "For each dead unit: incoming weights as He's initialisation draws them, bias 0, outgoing weights 0; the "
        "optimizer's first moments of these entries 0, its second moments those of the mean of the others."
    )
    source = "ReDo (Sokar et al. 2023, algorithm 1)"

    seed: int = Field(default=0, ge=0)

    def apply(self, target: Target, finding: Finding | None, rows: Sequence[int] | None) -> Change:
        """See `Remedy.apply`; with a rule for some parameters, only units whose incoming weights are among them.

        Raises:
            Unavailable: no probe of this step says which units are dead, or it is not sure what feeds them.
        """
        from gradguard.surgery import unit_revival
        from gradguard.surgery.initialization import seeded

        target.refuse_if_stopped()
        seen = target.stats.activations
        if seen is None or not seen.dead_units:
            raise Unavailable("which units are dead is known at the step of a probe of activations only")
        known, refused = _places(target, seen, rows)
        if not known:
            raise Unavailable("; ".join(refused[:3]) or "the probe of this step saw no dead unit")
        target.operate()
        generator = seeded(self.seed, target.stats.step)
        changed: dict[str, None] = {}
        for place, around in known:
            units = seen.dead_units[place].tolist()
            names = unit_revival.revive(around, seen.kinds[place], units, target.optimizer, generator)
            changed.update(dict.fromkeys(names))
        num_units = sum(len(seen.dead_units[place]) for place, _ in known)
        left = f"; left alone: {refused[0]}" if refused else ""
        return Change(
            summary=f"{num_units} dead units of {len(known)} layers begin anew{left}",
            before={"dead_units": num_units},
            after={"layers": len(known), "parameters": len(changed), "layers_left_alone": len(refused)},
        )


def _places(
    target: Target, seen: Activations, rows: Sequence[int] | None
) -> tuple[list[tuple[int, Neighbours]], list[str]]:
    """Return (place, what is around it) of those with dead units, and why others are left alone."""
    from gradguard.gradients.sharded import is_sharded
    from gradguard.model.module_chain import neighbours

    own = {id(target.params[row]) for row in (range(len(target.params)) if rows is None else rows)}
    known: list[tuple[int, Neighbours]] = []
    refused: list[str] = []
    for place, (name, kind, units) in enumerate(zip(seen.names, seen.kinds, seen.dead_units, strict=True)):
        if not len(units) or kind in NEVER:
            continue
        around = neighbours(target.model, name)
        if isinstance(around, str):
            refused.append(around)
        elif around.after is None:
            refused.append(f"no layer follows {name!r}")
        elif any(id(link.module.weight) not in own for link in (around.before, around.after)):
            refused.append(f"the layers around {name!r} are not all among the parameters that the rule acts on")
        elif is_sharded(around.before.module.weight):  # type: ignore[arg-type]
            refused.append(f"the weights around {name!r} are spread over ranks")
        else:
            known.append((place, around))
    return known, refused
