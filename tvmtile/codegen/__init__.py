"""Additions to TVM's code generators, registered or inserted through TVM's own hooks."""
