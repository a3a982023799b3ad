"""Checks and the verifier: what is wrong with a program before it is lowered.

A tile program goes in, and the same comes out, or an error with the user's line. The passes work on
the program as it was written; `bounds` says which indices a loop reaches. `verify`
holds between passes, in tests, what each says that it establishes (`tvmtile.ir.passes.Property`).
"""
