"""Numeric fault injection: see a policy work before you trust it.

    from gradguard import faults

    plan = [
        faults.Fault("nan", "gradient", at=20, parameters="*.weight"),
        faults.Fault("scale", "lr", at=50, factor=300),
    ]
    with faults.inject(model, optimizer, plan, seed=0) as injector:
        train()
    injector.log  # what was injected, where, and the values before and after

Everything works through torch's hooks; leaving the block removes them. The faults land before a guard looks, whichever
of the two was attached first.
"""

from gradguard.faults.fault import Fault
from gradguard.faults.injector import Injected, Injector, inject


__all__ = ["Fault", "Injected", "Injector", "inject"]
