"""The run directory on disk: an append-only journal, per-step statistics, and the facts about the run."""
