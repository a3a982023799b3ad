"""Passes that write what a target's code generator takes: element operators, arithmetic, names."""
