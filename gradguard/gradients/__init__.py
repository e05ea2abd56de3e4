"""Gradients to numbers: what every step measures of them, on their own device and across ranks, never a write."""
