"""One intervention per file; each registers itself in `gradguard.contracts.REMEDIES`."""
