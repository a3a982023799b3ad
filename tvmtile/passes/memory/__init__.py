"""Passes that decide where tiles lie: layouts in memory, allocations, the width of indices."""
