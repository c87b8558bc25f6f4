"""What a run leaves on disk and shows on a terminal. Imports neither torch nor Ray."""
