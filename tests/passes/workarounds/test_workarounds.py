"""The table of workarounds says why each of these passes is there."""

from pathlib import Path

from tvmtile.passes import workarounds
from tvmtile.passes.workarounds import WORKAROUNDS
from tvmtile.pipeline import LOWERING, SOURCE


def test_each_is_in_a_pipeline_and_has_one_row():
    steps = [row.step.info.name for row in WORKAROUNDS]
    used = {step.info.name for steps in (*LOWERING.values(), SOURCE) for step in steps}
    assert len(set(steps)) == len(steps)
    assert set(steps) <= used


def test_each_module_of_the_folder_has_a_row():
    names = {row.step.info.name.removeprefix("tvmtile.") for row in WORKAROUNDS}
    modules = Path(workarounds.__file__).parent.glob("[!_]*.py")
    texts = {path.stem: path.read_text() for path in modules}
    assert all(any(f'"{name}"' in text for name in names) for text in texts.values())
    assert all(any(f'"{name}"' in text for text in texts.values()) for name in names)
