"""What is looked at now and then beside the gradients' norms: activations, updates, full statistics."""
