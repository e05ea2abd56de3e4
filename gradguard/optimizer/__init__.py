"""Torch's optimizers: the hooks around their step, who scales losses and gradients, their options and their state."""
