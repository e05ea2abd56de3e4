"""The overhead: what a guarded step costs beside a bare one, and beside `clip_grad_norm_`, which everyone pays already.

    python -m benchmarks.overhead --quick
    python -m benchmarks.overhead --json overhead.json --plot overhead.png --markdown overhead.md
    python -m benchmarks.overhead --workload mlp-40,gpt2-124m --optimizer adamw-fused --guards default,always-due
    python -m benchmarks.overhead --workload mlp-4 --long 100000

One process holds a copy of the model and its optimizer for every contender. In every round each of them takes one step
on the same batch, in an order drawn anew, so that whatever else the machine does strikes all alike. Timed is only
what differs: `observe` and `step()` under the guard, `clip_grad_norm_` and `step()` without it, `step()` alone.

    overhead = median(contender) - median(bare)          ratio = overhead / overhead of clip_grad_norm_

Torch gets one thread unless told otherwise: where a core is shared, threads wait for each other at every operation, and
that wait is all one measures. Gradients come from a real backward, and the learning rate is so small that they stay
what they are. Preset gradients are put back, outside of the timed part, after a step that changed them. Every guard
writes its record to disk.

Intervals are 95 % bootstraps over rounds. Python's garbage collector runs between rounds, not in the timed parts.
"""
