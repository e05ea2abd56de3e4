"""The policy: its schema, how a file becomes one, the presets, and the pure decision."""
