"""Which runs are repaired: the zoo, tended by several hands on the same seeds, beside what a person would fix.

    python -m benchmarks.zoo --repair --seeds 5 --jobs 2 --json repair.json
    python -m benchmarks.zoo.repair.report repair.json

| arm                 | what stands beside the loop                                                      |
|---------------------|----------------------------------------------------------------------------------|
| do nothing          | nobody                                                                           |
| clip 1.0            | `clip_grad_norm_(parameters, 1.0)` before every step                             |
| clip, skip, plateau | that, no step with a gradient that is not finite, and `ReduceLROnPlateau`        |
| random remedy       | a guard that intervenes when ours does, with a remedy drawn by lot               |
| default             | gradguard with its default policy                                                |
| repair              | gradguard with the preset that may also operate on the model, if there is one    |
"""
