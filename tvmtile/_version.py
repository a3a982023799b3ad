"""The version of tvmtile: that of the distribution, which takes it from git's last tag."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("tvmtile")
except PackageNotFoundError:  # a tree that nobody has installed
    __version__ = "0+unknown"
