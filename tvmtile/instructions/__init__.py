"""Device instructions as tables: one row an instruction, that checks itself when it is imported.

A row names the instruction and says which lane holds which element. Lowerings, the emulator and tests
read the same row.
"""
