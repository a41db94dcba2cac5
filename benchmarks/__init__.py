"""What recording costs, against the bare step, the peers and what the machine can do: `make bench`."""
