"""Two runs step by step: where they part, in what, and what the guard did in each."""
