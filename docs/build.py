"""Generate the reference from the docstrings, and the programs in `through_the_passes.md`.

    python docs/build.py      # or: make docs

The reference is written to `docs/_build/reference.md`. The page is checked in; its generated part is
rewritten in place, and a test fails where it is out of date. The README gets the tables of the last
`python benchmarks/cpu.py --write benchmarks/results/cpu`, and of
`python benchmarks/gpu.py --write benchmarks/h200/gpu` on a GPU, if there were any.
"""

from __future__ import annotations

import ast
import difflib
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGE = DOCS / "through_the_passes.md"
REFERENCE = DOCS / "_build" / "reference.md"
README = ROOT / "README.md"
BENCHMARKS = {
    "benchmarks": ROOT / "benchmarks" / "results" / "cpu.md",
    "gpu": ROOT / "benchmarks" / "h200" / "gpu.md",
}

# Where a module's names stand. What is in no topic comes after them.
TOPICS = {
    "Functions and macros": ["entry"],
    "Parameters": ["tensor"],
    "Kernels": ["kernel"],
    "Memory": ["allocate", "variables", "views", "tileop.reducer"],
    "Loops": ["loops"],
    "Tile operators": [
        *("tileop.copy", "tileop.fill", "tileop.gemm", "tileop.reduce", "tileop.scan"),
        *("tileop.transpose", "tileop.im2col", "tileop.quantifier"),
    ],
    "Atomics": ["tileop.atomic"],
    "Values": ["math", "dtypes"],
    "Threads and warps": ["warps"],
    "Hints and layouts": ["annotations", "tileop.hints", "layout"],
    "Debugging": ["debug", "tileop.printing"],
}


# The reference -------------------------------------------------------------------------------


def reference() -> str:
    """The language, the Python interface, the passes and the errors, as one page of Markdown."""
    parts = ["# Reference", "", "Generated from the docstrings by `make docs`.", ""]
    parts += ["# The language", "", "`import tvmtile.language as T`", ""]
    for topic, entries in language_names().items():
        parts += [f"## {topic}", ""]
        for name, value in entries:
            first = _first_name(value, entries)
            parts += (
                entry(f"T.{name}", value)
                if name == first
                else [f"### `T.{name}`", "", f"The same as `T.{first}`.", ""]
            )
    parts += ["## Dtypes", "", *dtype_lines(), ""]
    parts += ["# Compiling and calling", ""]
    for module, names in {
        "tvmtile": ["jit", "compile", "plot_layout"],
        "tvmtile.jit": ["JitFunction", "Kernel"],
        "tvmtile.profiler": ["Profiler", "TensorSupplyType", "do_bench"],
        "tvmtile.target": ["resolve"],
        "tvmtile.autotuner": [
            *("autotune", "TunedFunction", "AutoTuner", "AutotuneResult", "Trial"),
            *("set_autotune_inputs", "get_autotune_inputs"),
        ],
        "tvmtile.carver": [
            *("MatmulTemplate", "FlashAttentionTemplate", "GeneralReductionTemplate"),
            *("ElementwiseTemplate", "Hint", "TileDevice", "get_arch", "proposals"),
        ],
    }.items():
        for name in names:
            value = getattr(importlib.import_module(module), name)
            parts += entry(f"{module}.{name}", getattr(value, name, value))
    parts += ["# Passes", "", *pass_lines()]
    parts += ["# Errors", ""]
    errors = importlib.import_module("tvmtile.errors")
    for name in errors.__all__:
        if inspect.isclass(value := getattr(errors, name)) and issubclass(value, Exception):
            parts += [f"- `{name}`: {inspect.getdoc(value).splitlines()[0]}"]
    return "\n".join(parts) + "\n"


def language_names() -> dict[str, list[tuple[str, Any]]]:
    """The public names of the language that are tvmtile's own, by topic."""
    language = importlib.import_module("tvmtile.language")
    by_module: dict[str, list[tuple[str, Any]]] = {}
    for name, value in vars(language).items():
        home = getattr(value, "__module__", None) or type(value).__module__
        if name.startswith("_") or inspect.ismodule(value) or not home.startswith("tvmtile."):
            continue
        if isinstance(value, str):  # a dtype
            continue
        short = home.removeprefix("tvmtile.").removeprefix("language.").removeprefix("frontend.")
        by_module.setdefault(short, []).append((name, value))
    topics = {
        topic: [pair for module in modules for pair in sorted(by_module.pop(module, []))]
        for topic, modules in TOPICS.items()
    }
    topics["More"] = [pair for pairs in by_module.values() for pair in sorted(pairs)]
    return {topic: pairs for topic, pairs in topics.items() if pairs}


def _first_name(value: Any, entries: list[tuple[str, Any]]) -> str:
    """What an object is called where it has several names: as it was defined, if that is one."""
    names = [name for name, other in entries if other is value]
    own = getattr(value, "__name__", "")
    return own if own in names else names[-1]


def dtype_lines() -> list[str]:
    """The scalar dtypes in one line, and how vectors are named."""
    dtypes = importlib.import_module("tvmtile.frontend.dtypes")
    scalars = [name for name in dtypes.dtype_names() if not re.search(r"\dx\d+$", name)]
    return [
        ", ".join(f"`T.{name}`" for name in scalars) + ".",
        "",
        "Vectors have a suffix: `T.float16x4`. Calling a dtype casts: `T.float32(x)`.",
    ]


def pass_lines() -> Iterator[str]:
    """Each pass with its docstring, programs included."""
    docstrings = pass_docstrings()
    passes = importlib.import_module("tvmtile.passes")
    for name in passes.__all__:
        if name in docstrings:
            yield from [f"### `tvmtile.passes.{name}`", "", *markdown(docstrings[name]), ""]
        else:  # an instrument, which is no pass
            yield from entry(f"tvmtile.passes.{name}", getattr(passes, name))


def pass_docstrings() -> dict[str, str]:
    """The docstring of each pass: TVM's decorators leave none on the pass itself."""
    found = {}
    for file in sorted((ROOT / "tvmtile" / "passes").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name[0].isupper():
                found[node.name] = ast.get_docstring(node) or ""
    return found


def entry(title: str, value: Any) -> list[str]:
    """A heading with the signature, the docstring, and the public methods of a class."""
    lines = [f"### `{title}{signature(value)}`", "", *markdown(own_docstring(value)), ""]
    if not inspect.isclass(value):
        return lines
    for name, member in vars(value).items():
        docstring = inspect.getdoc(member)
        documented = callable(member) or isinstance(member, property | cached_property)
        if name.startswith("_") or docstring is None or not documented:
            continue
        lines += [f"#### `.{name}{signature(member)}`", "", *markdown(docstring), ""]
    return lines


def own_docstring(value: Any) -> str:
    """A docstring; that of `__call__` for an object whose class is not for users."""
    if inspect.isroutine(value) or inspect.isclass(value):
        return inspect.getdoc(value) or ""
    return inspect.getdoc(type(value).__call__) or ""


def signature(value: Any) -> str:
    """The parameters and their defaults, without annotations."""
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    bare = [
        parameter.replace(annotation=parameter.empty, default=_Default.of(parameter))
        for parameter in parameters
        if parameter.name != "self" and not parameter.name.endswith("_options")
    ]
    return str(inspect.Signature(bare))


class _Default:
    """A default value, printed as one would write it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> Any:
        if not isinstance(parameter.default, enum.Enum):
            return parameter.default
        return cls(f"{type(parameter.default).__name__}.{parameter.default.name}")


# A docstring in numpy's convention, as Markdown ------------------------------------------------

_ITEMS = ("Parameters", "Attributes", "Returns", "Yields", "Raises")


def markdown(docstring: str) -> list[str]:
    """Section headings become bold lines, items of a section become a list."""
    lines = docstring.splitlines()
    shown, section = [], ""
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line and re.fullmatch("-{3,}", following):
            section = line
            shown += [f"**{section}**", ""]
        elif not re.fullmatch("-{3,}", line):
            shown.append(_item(line) if section in _ITEMS else line)
    return _fence_doctests(shown)


def _item(line: str) -> str:
    if not line or line.startswith(" "):
        return line[2:]  # a description continues its item
    name, _, kind = line.partition(" : ")
    return f"- `{name}`" + (f" ({kind})" if kind else "") + "  "


def _fence_doctests(lines: list[str]) -> list[str]:
    shown: list[str] = []
    inside = False
    for line in lines:
        begins, ends = line.startswith(">>>") and not inside, inside and not line
        if begins or ends:
            shown.append("```python" if begins else "```")
            inside = begins
        shown.append(line)
    return [*shown, "```"] if inside else shown


# The page that follows kernels through the passes ----------------------------------------------

# So that the page is the same on every machine: 16 vector registers of 256 bits.
_TARGETS = {
    "cpu": {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v3"},
    "cuda": {"kind": "cuda", "arch": "sm_80"},
    "metal": {"kind": "metal"},
}
_MOST_LINES = {"diff": 24, "python": 60}
_WIDEST = 140


def passes_page(page: str) -> str:
    """The page with its programs as they are today."""
    sys.path.insert(0, str(ROOT / "examples"))
    try:
        kernels = {
            "gemm": importlib.import_module("gemm").gemm,
            "attention": importlib.import_module("flash_attention").flash_attention,
        }
        printing = importlib.import_module("printing")
    finally:
        sys.path.pop(0)
    programs = {
        "gemm": kernels["gemm"](100, 128, 96, block_M=48, block_N=64, block_K=32, dtype="float16"),
        "attention": kernels["attention"](1, 2, 100, 32, True, 32, 32, "float16"),
    }
    generated = {}
    for name, program in programs.items():
        generated[f"{name}_kernel"] = _fenced("python", inspect.getsource(kernels[name]))
        generated[f"{name}_program"] = _fenced("python", printing.body(program.script()))
        for target, described in _TARGETS.items():
            steps = _lowered(
                program, described, lambda mod: printing.abbreviated(printing.body(mod.script()))
            )
            generated[f"{name}_{target}"] = _pass_sections(steps)
    return filled(page, generated)


def filled(page: str, generated: dict[str, str]) -> str:
    """A page with what stands between `<!-- generated: x -->` and `<!-- end -->` made anew."""
    return re.sub(
        r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)",
        lambda match: f"{match[1]}\n{generated[match[2]].strip()}\n\n{match[3]}",
        page,
        flags=re.DOTALL,
    )


def benchmark_tables() -> dict[str, str]:
    """The tables that the README shows: on a GPU without the costs and the configurations."""
    tables = {name: file.read_text() for name, file in BENCHMARKS.items()}
    speeds = tables["gpu"].split("\n\n")[:2]
    tables["gpu"] = re.sub(r" [^|]* \|$", "", "\n\n".join(speeds), flags=re.MULTILINE)
    return tables


def _lowered(
    program: Any, target: dict[str, str], show: Callable[[Any], str]
) -> list[tuple[str, str, str]]:
    """Each pass by name, with the program before and after it."""
    from tvm import ir

    from tvmtile.pipeline import lowering_passes
    from tvmtile.target import resolve

    mod = ir.IRModule({"main": program})
    steps = []
    for step in lowering_passes(resolve(target)):
        before, mod = show(mod), step(mod)
        if step.info.name.startswith("tvmtile."):
            steps.append((step.info.name.removeprefix("tvmtile."), before, show(mod)))
    return steps


def _pass_sections(steps: list[tuple[str, str, str]]) -> str:
    """What the passes change, which of them change nothing, and what TVM gets."""
    idle = [f"`{name}`" for name, before, after in steps if before == after]
    changes = [_pass_section(*step) for step in steps if step[1] != step[2]]
    unchanged = f"The program stays as it is in {', '.join(idle)}."
    final = f"#### What TVM gets\n\n{_beginning('python', steps[-1][2])}"
    return "\n\n".join([*changes, textwrap.fill(unchanged, 100), final])


def _pass_section(name: str, before: str, after: str) -> str:
    """A pass: the first paragraph of its docstring, and what it changed."""
    summary = pass_docstrings()[name].split("\n\n")[0]
    difference = _difference(before.splitlines(), after.splitlines())
    return f"#### {name}\n\n{summary}\n\n{_beginning('diff', difference)}"


def _beginning(language: str, text: str) -> str:
    """The first lines of a text that is too long to be read, and how many follow."""
    most, lines = _MOST_LINES[language], text.splitlines()
    shown = [x if len(x) <= _WIDEST else f"{x[:_WIDEST]} ..." for x in lines]
    left = [f"# ... {len(lines) - most} more lines"] if len(lines) > most else []
    return _fenced(language, "\n".join([*shown[:most], *left]))


def _difference(before: list[str], after: list[str]) -> str:
    """The changed lines with one line around them; lines that only moved sideways are the same."""
    matcher = difflib.SequenceMatcher(
        None, [line.strip() for line in before], [line.strip() for line in after], autojunk=False
    )
    shown: list[str] = []
    for group in matcher.get_grouped_opcodes(n=1):
        shown.append(" ...")
        for kind, *(i0, i1, j0, j1) in group:
            if kind == "equal":
                shown += [f" {line}" for line in after[j0:j1]]
            else:
                shown += [f"-{line}" for line in before[i0:i1]]
                shown += [f"+{line}" for line in after[j0:j1]]
    return "\n".join([*shown, " ..."])


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{textwrap.dedent(text).rstrip()}\n```"


def main() -> None:
    REFERENCE.parent.mkdir(exist_ok=True)
    REFERENCE.write_text(reference())
    PAGE.write_text(passes_page(PAGE.read_text()))
    if all(file.exists() for file in BENCHMARKS.values()):
        README.write_text(filled(README.read_text(), benchmark_tables()))
    print(f"wrote {REFERENCE.relative_to(ROOT)} and {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
