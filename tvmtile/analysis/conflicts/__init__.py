"""Conflicts of accesses: two threads of a block may touch one element, and one writes it.

`footprint` answers: `comparison` compares the elements of both, as `points` enumerates them, in the
`iterations` of loops that are possible, by what `domain` knows of variables. Of many accesses,
`meetings` says first which touch a common element at all.
"""
