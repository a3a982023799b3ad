"""Passes that share out a block's work over the threads of a GPU and order their accesses."""
