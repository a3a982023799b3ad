"""Checks and the verifier: what is wrong with a program, or with a call.

A tile program goes in, and the same comes out, or an error with the user's line: CheckLaunch
(`launch`), CheckLoops (`loops`) and CheckTiles (`tiles`) work on the program as it was written. `calls`
has the host check what a call gives, in TVM's part of the pipeline. `verify` holds between passes, in
tests and where `tvmtile.verify` is asked for, what each says that it establishes
(`tvmtile.ir.passes.Property`), by `bounds` that no access lies outside.
"""
