"""One destination of records per file; each registers itself in `gradguard.contracts.SINKS`."""
