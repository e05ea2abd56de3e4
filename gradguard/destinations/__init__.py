"""One kind of file per module that a run can be exported to; each registers itself in `gradguard.export.destination`."""
