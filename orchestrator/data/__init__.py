"""Images and labels: where they come from, their checks, and the decoded form that every worker maps."""
