"""Whether the simulated device can be trusted: its results, its memory, its order of things, its counts."""
