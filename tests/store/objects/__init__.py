"""Object storage, against a real server."""
