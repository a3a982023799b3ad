"""Helpers of tests that start an interpreter of their own."""

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"
"""The first line of a program without torch: TVM imports it, which takes longer than all the rest."""
