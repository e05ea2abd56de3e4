"""Reading a run back: the record as objects and arrays, its verification, its summary. Nothing here needs torch."""
