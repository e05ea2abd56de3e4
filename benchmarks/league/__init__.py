"""The league: three models, eight kinds of weather, nine guards, each pair of runs on the same weights and batches.

    python -m benchmarks.league --seeds 3 --jobs 2 --json league.json
    python -m benchmarks.league.report league.json

A guard is judged by where the model ends up on held-out data, by the steps that it threw away, and by how often it
had to act. Nothing is tuned to a cell: every guard runs with the defaults it was published with.
"""
