"""Looking at a kernel: the code that was generated, and what each pass did."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tvm import ir, tirx
from tvm.target import Target

from tvmtile.errors import InvalidOperand, hide_internal_frames
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.backends import Adapter
from tvmtile.jit.executable import Executable

if TYPE_CHECKING:
    from tvmtile.jit.backends import CudaAdapter
    from tvmtile.jit.resources import KernelResources
    from tvmtile.passes.tile.select_implementation import Choices

Made = TypeVar("Made")


class Inspection:
    """The views of a kernel, which are those of the executable that was called last."""

    name: str
    prim_func: tirx.PrimFunc

    @property
    def executable(self) -> Executable:
        """The executable that is looked at."""
        raise NotImplementedError

    @property
    def adapter(self) -> Adapter:
        """The adapter that runs it; that of the emulator has `statistics` of the last call."""
        return self.executable.adapter

    @property
    def artifact(self) -> Artifact:
        """The program, compiled."""
        return self.executable.artifact

    @property
    def target(self) -> Target:
        """The target that it was compiled for."""
        return self.artifact.target

    def get_kernel_source(self, kernel_only: bool = True) -> str:
        """The code that was generated: LLVM's intermediate language on a CPU, Metal's on its GPUs.

        Parameters
        ----------
        kernel_only : bool
            Leave out the host's part, where the target has one of its own.
        """
        return self.adapter.source(kernel_only)

    def get_host_source(self) -> str:
        """The host's part: LLVM's intermediate language of what checks the arguments and launches."""
        return self.artifact.host_source

    @property
    def kernel_source(self) -> str:
        """`get_kernel_source()`, by TileLang's name."""
        return self.get_kernel_source()

    @property
    def host_source(self) -> str:
        """`get_host_source()`, by TileLang's name."""
        return self.get_host_source()

    @property
    def execution_backend(self) -> str:
        """The backend, also where that was left open: `tvm_ffi`, `torch` or `emulator`."""
        return self.adapter.backend

    def show_source(self, kernel_only: bool = True) -> None:
        """Print the code that was generated."""
        sys.stdout.write(self.get_kernel_source(kernel_only) + "\n")

    def print_source_code(self, which: str = "kernel", file: str | Path | None = None) -> None:
        """Print the code that was generated, or write it into a file.

        Parameters
        ----------
        which : str
            "kernel", "host" or "both".
        file : str or Path, optional
            Where to write it; printed where absent.

        Raises
        ------
        InvalidOperand
            If it is none of the three.
        """
        if which not in ("kernel", "host", "both"):
            raise InvalidOperand(
                f"print_source_code: {which!r} is no part of the code",
                help='it is "kernel", "host" or "both"',
            )
        parts = {"kernel": self.get_kernel_source, "host": self.get_host_source}
        text = "\n".join(part() for name, part in parts.items() if which in (name, "both"))
        if file is None:
            sys.stdout.write(text + "\n")
        else:
            _write(file, text)

    def export_sources(
        self, kernel_path: str | Path | None = None, host_path: str | Path | None = None
    ) -> None:
        """Write the code that was generated into files; what has no path is left out.

        Parameters
        ----------
        kernel_path, host_path : str or Path, optional
            Where to write the kernels', and the host's part.
        """
        if kernel_path is not None:
            _write(kernel_path, self.get_kernel_source())
        if host_path is not None:
            _write(host_path, self.get_host_source())

    def show_ptx(self) -> None:
        """Print the PTX of a CUDA kernel; see `ptx`."""
        sys.stdout.write(self.ptx + "\n")

    def export_ptx(self, path: str | Path) -> None:
        """Write the PTX of a CUDA kernel into a file; see `ptx`."""
        _write(path, self.ptx)

    def show_sass(self) -> None:
        """Print the machine code of a CUDA kernel as text; see `sass`."""
        sys.stdout.write(self.sass + "\n")

    def export_sass(self, path: str | Path) -> None:
        """Write the machine code of a CUDA kernel as text into a file; see `sass`."""
        _write(path, self.sass)

    @property
    @hide_internal_frames
    def ptx(self) -> str:
        """The PTX that NVRTC makes of a CUDA kernel; it takes neither a GPU nor a toolkit.

        Raises
        ------
        InvalidOperand
            If the kernel is for another target.
        CudaCompileError
            If NVRTC refuses the kernel's source.
        """
        return self._from_nvrtc("PTX", lambda adapter: adapter.ptx)

    @property
    @hide_internal_frames
    def sass(self) -> str:
        """The machine code of a CUDA kernel as NVIDIA's disassembler prints it.

        Raises
        ------
        InvalidOperand
            If the kernel is for another target.
        MissingDependency
            If there is no nvdisasm.
        """
        from tvmtile.jit.resources import disassembled

        self._cuda_adapter("SASS")
        return disassembled(self.cubin)

    @property
    @hide_internal_frames
    def cubin(self) -> bytes:
        """The machine code of a CUDA kernel, an ELF file.

        Raises
        ------
        InvalidOperand
            If the kernel is for another target.
        CudaCompileError
            If NVRTC refuses the kernel's source.
        """
        return self._from_nvrtc("cubin", lambda adapter: adapter.binary.cubin)

    @hide_internal_frames
    def resources(self) -> tuple[KernelResources, ...]:
        """The registers, spills, stack and shared memory of the program's CUDA kernels.

        The kernels are compiled for that where they have not been; it takes no GPU.

        Returns
        -------
        tuple of KernelResources
            One for each `T.Kernel`, in order.

        Raises
        ------
        InvalidOperand
            If the kernel is for another target.
        CudaCompileError
            If NVRTC refuses the kernel's source.
        """
        from tvmtile.jit.resources import resources_of

        log = self._from_nvrtc("resources()", lambda adapter: adapter.binary.log)
        return resources_of(log, dict(self.lowering)["tvmtile.LowerTilePrograms"][self.name])

    @property
    def resource_usage(self) -> dict[str, KernelResources]:
        """`resources()` by the names of the kernels."""
        return {each.name: each for each in self.resources()}

    @property
    def n_regs(self) -> int:
        """The registers of a thread, of the kernel of the program that takes most; see `resources`."""
        return max(each.registers for each in self.resources())

    @property
    def n_spills(self) -> int:
        """The bytes that a thread spills, of the kernel that spills most; see `resources`."""
        return max(each.spills for each in self.resources())

    @property
    def n_max_threads(self) -> int:
        """The threads of a block, of the kernel that has most; see `resources`."""
        return max(each.threads for each in self.resources())

    def _from_nvrtc(self, what: str, read: Callable[[CudaAdapter], Made]) -> Made:
        """A product of NVRTC from the kernels; what it refuses is an error of the program."""
        from tvmtile.jit.build import translate_failures

        with translate_failures(self.prim_func, self.target):
            return read(self._cuda_adapter(what))

    def _cuda_adapter(self, what: str) -> CudaAdapter:
        from tvmtile.jit.backends import CudaAdapter

        if not isinstance(self.adapter, CudaAdapter):
            raise InvalidOperand(
                f"{self.name}: {what} is for CUDA kernels; this one is for "
                f"{self.target.kind.name!r}",
                help='compile it for target={"kind": "cuda", "arch": "sm_90a"}',
            )
        return self.adapter

    @property
    def module(self) -> Any:
        """TVM's module; of a Metal program that torch or the emulator runs, the host's part.

        A CUDA program that comes from the cache on a machine without a GPU is compiled again for it.
        """
        return self.executable.module

    @property
    def lowering(self) -> list[tuple[str, ir.IRModule]]:
        """Each pass that the program went through, with the module after it.

        The passes are run again to find out.
        """
        return self.executable.lowering

    def show_lowering(self, name: str = "") -> None:
        """Show what each pass changed: in colours in a terminal, collapsible in a notebook.

        Parameters
        ----------
        name : str
            Only passes whose name has this in it: "tvmtile." are those of tile programs.
        """
        from tvmtile.jit.lowering_view import LoweringView

        LoweringView(self.prim_func, self.lowering, name).show()

    @property
    def choices(self) -> Choices:
        """The implementation of each tile operator, and why nothing better is; printed, a table.

        On GPUs that split pipelined loops between warps it says of each whether it is, and why not.

        The passes are run again to find out.
        """
        from tvmtile.jit.lowering_view import module_before
        from tvmtile.passes.tile.schedule.schedule_pipelines import roles_of
        from tvmtile.passes.tile.select_implementation import Choices, choices_of

        steps = self.lowering
        chosen = choices_of(module_before("tvmtile.LowerTileOp", steps)[self.name])
        if self.target.kind.name != "cuda":
            return chosen
        loops = roles_of(module_before("tvmtile.SchedulePipelines", steps)[self.name])
        return Choices([*loops, *chosen])


def implementations() -> dict[str, list[str]]:
    """The implementations of each operator, with their kinds of target: `cuda/mma`."""
    import tvmtile.tileop.lowerings  # noqa: F401 - registers them
    from tvmtile.ir.operators import all_operators
    from tvmtile.tileop.registry import registered_lowerings

    found: dict[str, list[str]] = {name: [] for name in sorted(all_operators())}
    for item in registered_lowerings():
        found.setdefault(item.operator, []).append(f"{item.target_kind}/{item.variant}")
    return found


def _write(path: str | Path, text: str) -> None:
    """Write a text, in a directory that is made for it."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
