"""Recording to object storage, against a real server."""
