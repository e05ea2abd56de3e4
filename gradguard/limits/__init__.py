"""Limits on gradient norms that follow the run: one kind a file, as options, formula and memory. No torch."""
