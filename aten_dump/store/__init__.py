"""Files of a dump: bytes and records only. Imports neither torch nor anything else of aten_dump but its errors."""
