"""What a step measured, and the statistics that diagnoses rest on: pure numbers, no torch."""
