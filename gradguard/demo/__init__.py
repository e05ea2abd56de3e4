"""A small GPT, broken on purpose with and without the guard: what `gradguard demo` runs."""
