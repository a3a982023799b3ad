"""What type checkers see of `tvmtile.cuda`, a path of `tvmtile.compat`."""

from tvmtile import language as language
