"""Did it help: what became of every intervention, and what was tried in a run."""
