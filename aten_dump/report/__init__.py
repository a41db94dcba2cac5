"""Renderers: what a dump holds, as text, tables, CSV and JSON. One file per report."""
