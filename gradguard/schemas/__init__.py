"""What the files of a run and its exported tables hold, as JSON Schemas with a version."""
