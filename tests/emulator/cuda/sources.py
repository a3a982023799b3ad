"""Sources of kernels, behind what they do with mbarriers and clusters (`mbarriers.cu`)."""

from pathlib import Path

FOLDER = Path(__file__).parent
MBARRIERS = (FOLDER / "mbarriers.cu").read_text(encoding="utf-8")


def with_mbarriers(name: str) -> str:
    """A file beside this one."""
    return MBARRIERS + (FOLDER / name).read_text(encoding="utf-8")
