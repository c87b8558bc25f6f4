"""The networks, and the weights they begin with."""
