"""Measurements of gradguard that anyone can rerun."""
