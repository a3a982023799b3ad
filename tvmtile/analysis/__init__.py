"""What passes ask of a program: accesses, effects, conflicts, uniformity; one answer a question."""
