"""Configuration: the options, where they come from, and the arithmetic of a batch. Imports neither torch nor Ray."""
