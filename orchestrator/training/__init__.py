"""The worker side: the training loop and its parts. Imports torch, never Ray."""
