"""A recorded run judged again, by its own policy or another: pure, from what is in the run directory. No torch."""
