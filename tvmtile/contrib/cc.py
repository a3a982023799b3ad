"""The C++ compiler of this machine, which TVM finds, under the name of TileLang's module."""

from tvm.support.cc import (
    create_executable,
    create_shared,
    create_staticlib,
    cross_compiler,
    get_cc,
)

__all__ = ["create_executable", "create_shared", "create_staticlib", "cross_compiler", "get_cc"]
