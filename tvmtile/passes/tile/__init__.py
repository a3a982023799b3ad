"""Passes on tile programs that every target, or every GPU, runs."""
