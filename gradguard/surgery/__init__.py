"""Changes to the model itself: fresh values, revived units, other activations."""
