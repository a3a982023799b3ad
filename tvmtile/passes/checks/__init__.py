"""What is wrong with a program before it is lowered, and what must hold between the passes."""
