"""Distributed training of image CNNs on Ray: one command on a laptop, the same one on a cluster."""
