"""States that a run can go back to: copies, files, the ring that keeps them, and the way back to the bit."""
