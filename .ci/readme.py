"""Run the programs of the README with an installed tvmtile, as their readers would: `make pythons`."""

import runpy
import sys
import tempfile
from pathlib import Path

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser

import tvmtile

README = Path(__file__).resolve().parents[1] / "README.md"

programs = [example.parsed for example in Sybil([PythonCodeBlockParser()]).parse(README).examples()]
with tempfile.TemporaryDirectory() as directory:
    # One script: the source of a kernel, and of a class under @I.ir_module, is read from a file.
    script = Path(directory) / "programs.py"
    script.write_text("\n".join(programs), encoding="utf-8")
    runpy.run_path(str(script), run_name="__main__")
python = ".".join(map(str, sys.version_info[:3]))
print(f"Python {python}, tvmtile {tvmtile.__version__}: {len(programs)} programs of the README run")
