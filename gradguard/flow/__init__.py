"""One step through the guard: measure, diagnose, decide, act, record; and what surrounds a step."""
