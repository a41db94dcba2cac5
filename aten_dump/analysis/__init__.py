"""Analysis of recordings: align and compare two dumps, replay ops, find non-finite values."""
