"""Passes that make serial, vectorisable code for a CPU of a block's work."""
