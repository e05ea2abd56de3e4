"""What a pre-flight looks for: one check a file, each a function `check(facts)` that yields what it finds. No torch."""
