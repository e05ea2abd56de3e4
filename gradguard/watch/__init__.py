"""A run as it goes on, read from its files: only what is new, by polling, so that any shared file system will do."""
