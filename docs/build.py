"""What MkDocs and its plugins don't know: programs of passes, the names of `T`, tables of benchmarks.

    python docs/build.py      # or: make docs

MkDocs calls `on_page_markdown` for the pages whose programs and names are made when the site is.
What is written here are the tables of the README and of the page on speed: those of the last `python
benchmarks/cpu.py --write benchmarks/results/cpu`, and of `python benchmarks/gpu.py --write
benchmarks/h200/gpu` on a GPU, if there were any.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT))
from tests.passes.rewrites import rewrites  # noqa: E402

PAGE = DOCS / "through_the_passes.md"
README = ROOT / "README.md"
WITH_TABLES = (README, DOCS / "speed.md")
BENCHMARKS = {
    "benchmarks": ROOT / "benchmarks" / "results" / "cpu.md",
    "gpu": ROOT / "benchmarks" / "h200" / "gpu.md",
}

# Of a GPU's cases the page on speed shows those whose names have one of these.
SHOWN_CASES = (
    *("gemm float16 4096", "gemm float16 8192 x 8192 x 8192 nn"),
    *("gemm bfloat16 8192 x 8192 x 8192 nn", "gelu"),
    *("block-sparse", "fp8 gemm, scales of rows, 4096 x 4096", "scales of blocks, 4096", "grouped"),
    *("int4", "mxfp4", "4 x 16 x 4096", "decode", "softmax", "norm", "moe", "compaction"),
    "copy",
)

# The kinds of kernels of the README's summary, by how their cases' names begin.
README_KINDS = {
    "GEMM, float16 and bfloat16": ("gemm float16", "gemm bfloat16"),
    "GEMM, float8, also grouped": ("fp8 gemm", "grouped fp8"),
    "GEMM, int4 and MXFP4 weights": ("int4", "mxfp4"),
    "GEMM of a mixture of experts": ("moe",),
    "attention": ("attention bfloat16",),
    "attention, backward": ("attention backward",),
    "attention, decoding": ("decode",),
    "softmax, RMS norm": ("softmax", "rms_norm"),
}

# Where a module's names stand. What is in no topic comes after them.
TOPICS = {
    "Functions and macros": ["entry"],
    "Parameters and memory": ["tensors", "parameters", "proxy", "tileop.reducer"],
    "Kernels": ["kernel", "launches"],
    "Loops": ["loops", "constructs"],
    "Tile operators": [
        *("tileop.copy", "tileop.moves", "tileop.gemm", "tileop.reduce", "tileop.scan"),
        "tileop.quantifier",
    ],
    "Atomics": ["tileop.atomic"],
    "Values": ["math", "values", "vectors", "dtypes"],
    "Threads and warps": ["warps", "votes"],
    "Hints and layouts": ["options", "tileop.hints", "layout"],
    "Debugging": ["debug", "tileop.printing"],
}


# The reference -------------------------------------------------------------------------------


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """MkDocs' hook: where a page says so, every name that there is of a kind, or what passes do."""
    generated = {
        "names": language_reference,
        "dtypes": dtypes,
        "passes": passes_reference,
        "rules": rules_reference,
        "glossary": glossary,
    }
    for name, make in generated.items():
        if f"<!-- {name} -->" in markdown:
            markdown = markdown.replace(f"<!-- {name} -->", make())
    return passes_page(markdown) if "<!-- generated: gemm_kernel -->" in markdown else markdown


def language_reference() -> str:
    """The names of the language by topic, for mkdocstrings; of what it can't find, the first line."""
    lines = []
    for topic, entries in language_names().items():
        lines += [f"## {topic}", ""]
        for name, value in entries:
            first = _first_name(value, entries)
            if name != first:
                lines += [f"### `T.{name}`", "", f"The same as `T.{first}`.", ""]
            elif _is_defined(value):
                lines += _directive(f"{value.__module__}.{value.__name__}", f"T.{name}")
            else:
                lines += [f"### `T.{name}{_signature(value)}`", "", _documented(value), ""]
    return "\n".join(lines)


def passes_reference() -> str:
    """Every pass with its example: by phases, then those in TVM's part, then what is all of them."""
    passes, pipeline = map(importlib.import_module, ("tvmtile.passes", "tvmtile.pipeline"))
    modules = {
        name: ".".join(part for part in file.with_suffix("").parts if part != "__init__")
        for file in _pass_files()
        for name in pass_docstrings(file)
    }
    modules |= {
        name: getattr(passes, name).__module__ for name in passes.__all__ if name not in modules
    }
    wholes = ["LowerTilePrograms", "Verify", "Verifier"]
    phases = {f"{phase.name}: {phase.form}": phase.names for phase in pipeline.PHASES}
    in_phases = [name for names in phases.values() for name in names]
    rest = [name for name in modules if name not in (*in_phases, *wholes)]
    chapters = {**phases, "In TVM's part of the pipeline": rest, "All of them, and checks": wholes}
    lines, shown = [], set()
    for chapter, names in chapters.items():
        lines += [f"## {chapter[0].upper()}{chapter[1:]}", ""]
        for name in names:
            if name in shown:
                lines += [f"Once more {name}, which is above.", ""]
            else:
                lines += _directive(f"{modules[name]}.{name}", name) + _example(name)
            shown.add(name)
    return "\n".join(lines)


def glossary() -> str:
    """The terms in the docstring of the package."""
    text = inspect.getdoc(importlib.import_module("tvmtile")) or ""
    terms = re.findall(r"^(\S.*)\n    (.*)$", text.partition("Glossary\n--------")[2], re.MULTILINE)
    return "\n".join(
        ["| Term | |", "| --- | --- |", *(f"| {term} | {line} |" for term, line in terms)]
    )


def rules_reference() -> str:
    """What is written in another form for the sake of a tool, and why."""
    legalize = importlib.import_module("tvmtile.passes.legalize")
    rows = {
        (rule.construct, rule.tool, f"{rule.reason}."): None
        for tables in legalize.RULE_TABLES
        for rules in tables.values()
        for rule in rules
    }
    head = ["| Construct | Tool | What it would do |", "| --- | --- | --- |"]
    return "\n".join(head + ["| " + " | ".join(row) + " |" for row in rows])


def _example(name: str) -> list[str]:
    """What a pass does to the program in its example, or each of its rules to one."""
    folder = re.sub("(?<!^)(?=[A-Z])", "_", name).lower()
    lines = []
    for file in (ROOT / "tests" / "passes").glob(f"*/{folder}.tvmscript"):
        has_rules = folder.startswith("legalize_")
        examples = [case for case in rewrites(file) if case.changes]
        for example in examples if has_rules else examples[:1]:
            description = " ".join(re.findall("^# (?!target:)(.*)", example.header, re.MULTILINE))
            lines += [f"{description}\n\nBefore:" if has_rules else "Before:", ""]
            lines += [f"```python\n{example.before}```", ""]
            lines += ["After:", "", f"```python\n{example.after}```", ""]
    return lines


def _directive(path: str, heading: str) -> list[str]:
    return [f"::: {path}", "    options:", f'      heading: "{heading}"', ""]


def _is_defined(value: Any) -> bool:
    """Whether a module's text has it under its name, as mkdocstrings looks for it."""
    if not (inspect.isfunction(value) or inspect.isclass(value)):
        return False
    text = inspect.getsource(sys.modules[value.__module__])
    return re.search(rf"^(def|class) {value.__name__}\b", text, re.MULTILINE) is not None


def _documented(value: Any) -> str:
    """What it does; where its class is not for users, what a call of it does."""
    is_own = inspect.isroutine(value) or inspect.isclass(value)
    text = inspect.getdoc(value if is_own else type(value).__call__) or ""
    return text.split("\n\n")[0]


def _signature(value: Any) -> str:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


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


def dtypes() -> str:
    """The scalar dtypes in one line, and how vectors are named."""
    names = importlib.import_module("tvmtile.frontend.dtypes").dtype_names()
    scalars = ", ".join(f"`T.{name}`" for name in names if not re.search(r"\dx\d+$", name))
    return f"{scalars}.\n\nVectors have a suffix: `T.float16x4`. Calling a dtype casts: `T.float32(x)`."


def _pass_files() -> list[Path]:
    return [x.relative_to(ROOT) for x in sorted((ROOT / "tvmtile" / "passes").rglob("*.py"))]


def pass_docstrings(*files: Path) -> dict[str, str]:
    """The docstring of each pass: TVM's decorators leave none on the pass itself."""
    return {
        node.name: ast.get_docstring(node) or ""
        for file in files or _pass_files()
        for node in ast.parse((ROOT / file).read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name[0].isupper()
    }


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
    """The tables that pages show: on a GPU some cases, without their configurations.

    A row says its run where there are several.
    """
    tables = {name: file.read_text() for name, file in BENCHMARKS.items()}
    runs, speeds = (part.splitlines() for part in tables["gpu"].split("\n\n")[:2])
    cells = [row.removesuffix(" |").split(" | ") for row in speeds]
    shown = cells[:2] + [row for row in cells[2:] if any(name in row[0] for name in SHOWN_CASES)]
    named = {row[-1] for row in shown[2:]}
    # A single run has no number.
    measured = [run for run in runs if len(runs) == 1 or run.partition(".")[0] in named]
    rows = [row[:-2] + row[-1:] * (len(measured) > 1) for row in shown]
    tables["gpu"] = "\n".join([*measured, "", *(" | ".join(row) + " |" for row in rows)])
    tables["ratios"] = _ratios([(row[0].removeprefix("| "), row[3]) for row in cells[2:]])
    return tables


def _ratios(cases: list[tuple[str, str]]) -> str:
    """The summary: how far apart the ratios to others are, for each kind of kernels."""
    lines = ["| kernels | cases | speed relative to |", "| --- | --- | --- |"]
    for kind, beginnings in README_KINDS.items():
        rows = [others for name, others in cases if name.startswith(beginnings)]
        ratios: dict[str, list[float]] = {}
        for other, ratio in re.findall(
            r"(\S.*?) [\d.]+ \(([\d.]+)\)(?:, |$)", "\n".join(rows), re.M
        ):
            if "copy" not in other:  # a bound, nobody's kernel
                ratios.setdefault(other, []).append(float(ratio))
        spans = [
            f"{other} {min(of):.2f}" + f" to {max(of):.2f}" * (min(of) != max(of))
            for other, of in ratios.items()
        ]
        lines.append(f"| {kind} | {len(rows)} | {', '.join(spans)} |")
    return "\n".join(lines)


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
    if all(file.exists() for file in BENCHMARKS.values()):
        for page in WITH_TABLES:
            page.write_text(filled(page.read_text(), benchmark_tables()))
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
