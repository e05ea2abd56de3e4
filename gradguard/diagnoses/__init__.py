"""One failure mode per file; each registers itself in `gradguard.contracts.DIAGNOSES`."""
