"""Print the public names of the TileLang that can be imported, as `names.txt` has them."""

import sys
import textwrap
import types

import tilelang
import tilelang.language
from tilelang.jit import JITKernel


def print_names(owner, holder):
    public = (name for name in dir(holder) if not name.startswith("_"))
    names = (name for name in public if not is_foreign(getattr(holder, name, None)))
    print(textwrap.fill(" ".join(names), 100, initial_indent=f"{owner}: ", subsequent_indent="  "))


def is_foreign(value):
    """Tell whether it is a module, or a part of one, of another package."""
    module = value.__name__ if isinstance(value, types.ModuleType) else value.__class__.__module__
    module = getattr(value, "__module__", None) or module
    return module.partition(".")[0] in {"typing_extensions", *sys.stdlib_module_names} - {
        "builtins"
    }


print(f"# TileLang {tilelang.__version__}")
print_names("T", tilelang.language)
print_names("Kernel", JITKernel)
print_names("tvmtile", tilelang)
