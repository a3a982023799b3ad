"""Printed programs, made short enough to read."""

import re


def body(script):
    """A printed module's first function, without the imports and the class around it."""
    lines = script.splitlines()
    start = next(number for number, line in enumerate(lines) if "@T.prim_func" in line)
    indent = lines[start].index("@")
    ours = (line for line in lines[start:] if not line.startswith("# Metadata"))
    return "\n".join(line[indent:] for line in ours if "T.func_attr" not in line).rstrip()


def abbreviated(program, longest_period=4):
    """A program in which an unrolled micro-kernel's repetitions are counted and not shown.

    Groups of up to `longest_period` lines are repetitions of each other if they differ in numbers
    alone.
    """
    lines = program.splitlines()
    patterns = [re.sub(r"\d+", "#", re.sub(r" \+ \d+\b", "", line)) for line in lines]
    shown, position = [], 0
    while position < len(lines):
        period, repetitions = max(
            ((p, _repetitions(patterns[position:], p)) for p in range(1, longest_period + 1)),
            key=lambda found: found[0] * found[1],
        )
        shown += lines[position : position + period]
        if repetitions:
            indent = len(lines[position]) - len(lines[position].lstrip())
            shown.append(f"{'':{indent}}# ... and {repetitions} more")
        position += period * (repetitions + 1)
    return "\n".join(shown)


def _repetitions(patterns, period):
    """How often the first `period` lines occur again, one time after the other."""
    count = 0
    while patterns[:period] == patterns[(count + 1) * period : (count + 2) * period]:
        count += 1
    return count
