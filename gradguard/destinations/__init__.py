"""One kind of exported file per module; each registers itself in `gradguard.export.destination`."""
