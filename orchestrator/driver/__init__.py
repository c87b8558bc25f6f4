"""The driver side: starts Ray, builds the TorchTrainer, follows the run and explains its end."""
