"""The version of tvmtile, read by the build and shown by ``tvmtile.__version__``."""

__version__ = "0.1.0"
