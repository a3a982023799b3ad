"""Run the programs of the README with an installed tvmtile, as their readers would: `make pythons`."""

import sys
from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import tvmtile

README = Path(__file__).resolve().parents[1] / "README.md"

programs = list(Sybil([PythonCodeBlockParser()]).parse(README).examples())
for program in programs:
    program.evaluate()
python = ".".join(map(str, sys.version_info[:3]))
print(f"Python {python}, tvmtile {tvmtile.__version__}: {len(programs)} programs of the README run")
