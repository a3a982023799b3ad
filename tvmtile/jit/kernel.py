"""A compiled kernel: calling it, and looking at it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from tvm import ir
from tvm.target import Target

from tvmtile.compat.absent import no_attribute
from tvmtile.errors import InvalidOperand, hide_internal_frames
from tvmtile.jit.calls import CompiledProgram
from tvmtile.jit.ir_data import Node, from_data, to_data
from tvmtile.jit.signature import KernelParam
from tvmtile.jit.signatures import Results

if TYPE_CHECKING:
    from torch.library import CustomOpDef

    from tvmtile.carver.devices import TileDevice
    from tvmtile.jit.cuda import CudaAdapter
    from tvmtile.jit.cuda.resources import KernelResources
    from tvmtile.passes.tile.select_implementation import Choices
    from tvmtile.profiler import Profiler, TensorSupplyType
    from tvmtile.profiler.kernel_profile import KernelProfile

Made = TypeVar("Made")


class Kernel(CompiledProgram[Results]):
    """A tile program compiled for a target.

    Call it with the parameters of the program, in order, without those that are results: these are
    allocated, on the device of the first tensor, and returned. Tensors are passed without copies.
    Arguments are checked by the compiled code before anything runs.

    Attributes
    ----------
    prim_func : tvm.tirx.PrimFunc
        The tile program.
    artifact : Artifact
        What the program was compiled to.
    target : Target
        What it was compiled for.
    out_idx : tuple of int
        Which parameters are results.
    adapter : Adapter
        What runs it; that of the emulator has `statistics` of the last call.
    options : mapping
        What `tvmtile.compile` was given besides the program.
    latency, ref_latency : float or None
        Milliseconds a call of a kernel that was tuned, and of its reference.
    config : dict or None
        The configuration that the autotuner chose.

    A copy of a kernel is the kernel itself. Pickled, it is its program and its options, and is compiled
    again where it is loaded.
    """

    options: Mapping[str, Any] = MappingProxyType({})
    latency: float | None = None
    ref_latency: float | None = None
    config: dict[str, Any] | None = None

    @property
    def params(self) -> list[KernelParam]:
        """The parameters of the program, results included; `prim_func.params` are TVM's variables."""
        return [KernelParam.of(param) for param in self.prim_func.params]

    # Taking it elsewhere ---------------------------------------------------------------------

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        options = dict(self.options)
        if isinstance(options.get("target"), Target):
            options["target"] = json.loads(str(options["target"]))
        return _compiled_again, (to_data(self.prim_func), options)

    def export_library(self, path: str | os.PathLike[str], compiler: str | None = None) -> Path:
        """Write the kernel as a library, which `tvmtile.load` calls on TVM's runtime alone.

        `tvm.runtime.load_module(path)[name]`, and TVM's runtime in any other language, take it too, all
        parameters given.

        Parameters
        ----------
        path : str or path
            What to write: a shared library, or with the suffix ".tar" the object files of one.
        compiler : str, optional
            What links a shared library; needed for a CPU that is not this machine's.

        Returns
        -------
        Path
            What was written.

        Raises
        ------
        InvalidOperand
            If a call takes more than TVM's runtime.
        InvalidValue
            If the library is for another CPU and there is nothing to link it with.
        """
        from tvmtile.jit.export import export_library

        return export_library(self, path, compiler)

    def as_torch_op(self, name: str, backward: Callable[..., object] | None = None) -> CustomOpDef:
        """Register the kernel as an operator of torch's own.

        torch.compile, torch.export and AOTInductor then take it as a whole: the shapes and dtypes of
        its results, dynamic extents included, and what it writes follow from the program.

        Parameters
        ----------
        name : str
            With a namespace, "my_library::matmul"; `torch.ops.my_library.matmul` is the operator.
        backward : callable, optional
            `backward(ctx, *gradients)`, given the gradients of the results, returns those of the
            parameters, None for one that has none. `ctx.saved_tensors` are the tensors that the kernel
            was given, then those that it returned; `ctx.constants` are its other arguments. Without it,
            a backward that reaches the operator is an error.

        Returns
        -------
        torch.library.CustomOpDef
            Callable as the kernel is. `torch.vmap` of it calls it for one element after the other.

        Raises
        ------
        InvalidValue
            If the name has no namespace.
        """
        from tvmtile.jit.torch_library import as_torch_op

        return as_torch_op(self, name, backward)

    # Looking at it ---------------------------------------------------------------------------

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
        """What calls it, also where that was left open: `tvm_ffi`, `torch` or `emulator`."""
        return self.adapter.backend

    def get_profiler(self, tensor_supply_type: TensorSupplyType | None = None) -> Profiler:
        """Something to measure the kernel with, and to compare it with a reference.

        Parameters
        ----------
        tensor_supply_type : TensorSupplyType, optional
            What the inputs hold; `TensorSupplyType.Auto` where absent.
        """
        from tvmtile.profiler import Profiler, TensorSupplyType

        return Profiler(self, tensor_supply_type or TensorSupplyType.Auto)

    def profile(
        self,
        *tensors: object,
        warmup: float = 25,
        rep: float = 100,
        device: TileDevice | None = None,
    ) -> KernelProfile:
        """Measure a call, and count what it does beside what the device can do.

        In an emulator nothing is measured; conflicts of shared memory's banks are counted instead. For
        another machine than this one, all is counted and nothing measured.

        Parameters
        ----------
        *tensors
            The arguments of a call; made by a profiler where there are none.
        warmup, rep : float
            As of `tvmtile.profiler.do_bench`.
        device : TileDevice, optional
            What it is compared with; what `tvmtile.carver.get_arch` knows of the target where absent.

        Returns
        -------
        KernelProfile
            Printed, a table.
        """
        from tvmtile.profiler.kernel_profile import profile

        return profile(self, tensors, warmup, rep, device)

    def run_once(self, func: Callable[..., object] | None = None) -> Any:
        """Call the kernel, or a function, once with inputs that a profiler makes."""
        return self.get_profiler().run_once(func)

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
        """What NVRTC makes of a CUDA kernel before its assembler; it takes neither a GPU nor a toolkit.

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
        from tvmtile.jit.cuda.disassembly import disassembled

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
        """What the CUDA kernels of the program take: registers, spills, stack, shared memory.

        They are compiled for that where they have not been; it takes no GPU.

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
        from tvmtile.jit.cuda.resources import resources_of

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
        """What NVRTC makes of the kernels; what it refuses is an error of the program."""
        from tvmtile.jit.failures import translate_failures

        with translate_failures(self.prim_func, self.target):
            return read(self._cuda_adapter(what))

    def _cuda_adapter(self, what: str) -> CudaAdapter:
        from tvmtile.jit.cuda import CudaAdapter

        if not isinstance(self.adapter, CudaAdapter):
            raise InvalidOperand(
                f"{self.name}: {what} is for CUDA kernels; this one is for "
                f"{self.target.kind.name!r}",
                help='compile it for target={"kind": "cuda", "arch": "sm_90a"}',
            )
        return self.adapter

    @cached_property
    def module(self) -> Any:
        """What TVM built; of a Metal program that torch or the emulator runs, the host's part.

        A CUDA program that comes from the cache on a machine without a GPU is compiled again for it.
        """
        if self.artifact.is_whole:
            return self.artifact.module
        from tvmtile.jit.build import build_artifact

        return build_artifact(self.prim_func, self.target, "tvm_ffi", self._config).module

    @cached_property
    def lowering(self) -> list[tuple[str, ir.IRModule]]:
        """Each pass that the program went through, with the module after it.

        The passes are run again to find out.
        """
        from tvmtile.jit.trace import lowering_steps

        return lowering_steps(self.prim_func, self.target, self._config)

    def show_lowering(self, name: str = "") -> None:
        """Show what each pass changed: in colours in a terminal, collapsible in a notebook.

        Parameters
        ----------
        name : str
            Only passes whose name has this in it: "tvmtile." are those of tile programs.
        """
        from tvmtile.jit.lowering_view import LoweringView

        LoweringView(self.prim_func, self.lowering, name).show()

    def get_tuner_result(self) -> dict[str, Any]:
        """What the autotuner chose: `latency`, `config` and `ref_latency`.

        Raises
        ------
        InvalidOperand
            If the kernel was not tuned.
        """
        if self.latency is None:
            raise InvalidOperand(
                f"{self.name} was not tuned", help="@tvmtile.autotune(configs=...) tunes a kernel"
            )
        return {"latency": self.latency, "config": self.config, "ref_latency": self.ref_latency}

    def __getattr__(self, name: str) -> Any:
        raise no_attribute("Kernel", self, name)

    def __repr__(self) -> str:
        results = f", results {list(self.out_idx)}" if self.out_idx else ""
        params = ", ".join(f"{p.name}: {_described(p)}" for p in self.params)
        return f"<Kernel {self.name}({params}){results} for {self._where()}>"

    def _where(self) -> str:
        return str(self.target.attrs.get("arch", self.target.kind.name))

    @cached_property
    def choices(self) -> Choices:
        """What implements each tile operator, and why nothing better does; printed, a table.

        On GPUs that split pipelined loops between warps it says of each whether it is, and why not.

        The passes are run again to find out.
        """
        from tvmtile.jit.trace import module_before
        from tvmtile.passes.tile.schedule.warp_specialize import roles_of
        from tvmtile.passes.tile.select_implementation import Choices, choices_of

        steps = self.lowering
        chosen = choices_of(module_before("tvmtile.LowerTileOp", steps)[self.name])
        if self.target.kind.name != "cuda":
            return chosen
        loops = roles_of(module_before("tvmtile.WarpSpecialize", steps)[self.name])
        return Choices([*loops, *chosen])


def _write(path: str | Path, text: str) -> None:
    """Write a text, in a directory that is made for it."""
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def _described(param: KernelParam) -> str:
    """A parameter as a kernel writes it."""
    return f"{param.dtype}[{', '.join(map(str, param.shape))}]" if param.shape else str(param.dtype)


def _compiled_again(program: list[Node], options: Mapping[str, Any]) -> Kernel:
    """The kernel that was pickled."""
    from tvmtile.jit.compiler import compile as compile_program

    return compile_program(from_data(program), **options)
