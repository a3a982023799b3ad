"""A compiled kernel: calling it, and looking at it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, overload

from tvm import ir, tirx
from tvm.target import Target

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import (
    ArgumentError,
    CudaCompileError,
    EmulationError,
    InvalidOperand,
    MetalCompileError,
    MissingDependency,
    OutOfBounds,
)
from tvmtile.ir.packed import has_float4, params_in_bytes
from tvmtile.ir.rewriting import mentions, variables_of
from tvmtile.jit.adapter import Adapter
from tvmtile.jit.arguments import explain, in_order, is_pointer, ready, with_integers_in_range
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.dynamo import DYNAMO, break_graph
from tvmtile.jit.ir_data import Node, from_data, to_data
from tvmtile.jit.packed import as_bytes, as_elements
from tvmtile.jit.parameters import KernelParam
from tvmtile.jit.results import Results as Allocated
from tvmtile.jit.results import bound_extents, evaluate
from tvmtile.jit.signatures import Argument, Array, One, Results, Unknown
from tvmtile.jit.threads import prepare_thread_pool
from tvmtile.library import allocator

if TYPE_CHECKING:
    from torch.library import CustomOpDef

    from tvmtile.carver.arch import TileDevice
    from tvmtile.jit.cuda import CudaAdapter
    from tvmtile.jit.cuda.resources import KernelResources
    from tvmtile.jit.profile import KernelProfile
    from tvmtile.passes.tile.select_implementation import Choices
    from tvmtile.profiler import Profiler, TensorSupplyType

__all__ = ["Kernel"]

# Nothing is wrong with the arguments then.
_PROGRAM_FAILURES = (
    CudaCompileError,
    EmulationError,
    MetalCompileError,
    MissingDependency,
    OutOfBounds,
)

_PARTS = ("float16", "float32", "float64")
"""The dtypes of parts of complex numbers."""


class Kernel(Generic[Results]):
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

    def __init__(
        self,
        prim_func: tirx.PrimFunc,
        artifact: Artifact,
        out_idx: tuple[int, ...],
        config: Mapping[str, object],
        adapter: Adapter,
    ) -> None:
        self.prim_func = prim_func
        self.artifact = artifact
        self.target = artifact.target
        self.out_idx = out_idx
        self._config = dict(config)
        self.adapter = adapter
        self.name = artifact.name
        self._launch = with_integers_in_range(adapter.call, list(prim_func.params))
        self._call: Callable[..., None] = self._launch_or_dispatch
        # Nothing stands between a call and a launch where no result is to be made.
        self._run: Callable[..., Any] = self._call
        self._input_count = len(prim_func.params) - len(out_idx)
        self._stored, _ = params_in_bytes(prim_func.params)
        self._has_packed = any(map(has_float4, prim_func.params))
        self._results_of_calls = Allocated(self._stored, out_idx)
        if out_idx or self._has_packed:
            self._run = self._run_with_results
        prepare_thread_pool()

    @property
    def params(self) -> list[KernelParam]:
        """The parameters of the program, results included; `prim_func.params` are TVM's variables."""
        return [KernelParam.of(param) for param in self.prim_func.params]

    @overload
    def __call__(self: Kernel[Unknown], *args: Any, **named: object) -> Any: ...
    @overload
    def __call__(self: Kernel[One], *args: Argument[Array], **named: Argument[Array]) -> Array: ...
    @overload
    def __call__(self, *args: Any, **named: object) -> Any: ...
    def __call__(self, *args: Any, **named: object) -> Any:
        """Run the kernel.

        Parameters
        ----------
        *args : torch.Tensor, numpy.ndarray, tvm.runtime.Tensor, int or float
            The parameters that are not results. Where all parameters are given, results too, they
            are written in place.
        **named
            Parameters by their names.

        Returns
        -------
        tensor, list of tensors or None
            The results, of the same kind as the first tensor.

        Raises
        ------
        ArgumentError
            If an argument does not fit: the message names the parameter, what it needs and what it
            got.
        """
        if named:
            placed = in_order(self.name, self.prim_func.params, self.out_idx, args, named)
            if isinstance(placed, ArgumentError):
                raise placed  # here, so that no frames of ours follow
            args = placed
        try:
            return self._run(*args)
        except _PROGRAM_FAILURES:
            raise
        except Exception as error:  # noqa: BLE001 - TVM raises several kinds
            problem, results = self._run_converted(args, error)
        if problem is not None:
            raise problem
        return results

    def _run_with_results(self, *args: Any) -> Any:
        """Run the kernel, and return what it made."""
        if DYNAMO in sys.modules:
            break_graph()
        complete = self._completed(args)
        self._call(*complete)
        return self._results_in(complete)

    def _completed(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments as the program stores them, with results in their places."""
        if self._has_packed:
            args = self._with_bytes(args)
        if self.out_idx and len(args) == self._input_count:
            return self._results_of_calls.added_to(args, self.adapter.device)
        return args

    def _results_in(self, args: tuple[Any, ...]) -> Any:
        """The results among all arguments."""
        if not self.out_idx:
            return None
        results = [args[index] for index in self.out_idx]
        if self._has_packed:
            params = self.prim_func.params
            results = [as_elements(args[index], params[index]) for index in self.out_idx]
        return results if len(results) > 1 else results[0]

    def _with_bytes(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with bytes for elements that lie in pairs in them."""
        params = list(self.prim_func.params)
        if len(args) == self._input_count:
            params = [param for index, param in enumerate(params) if index not in self.out_idx]
        return as_bytes(args, params) if len(args) == len(params) else args

    def _launch_or_dispatch(self, *args: object) -> None:
        """The first calls: torch's tensors are called for what they are once there is torch."""
        if sys.modules.get("torch") is None:
            self._launch(*args)
            return
        if DYNAMO in sys.modules:
            break_graph()
        from tvmtile.jit.torch_calls import as_torch_operator

        params = list(self.prim_func.params)
        tensors = [i for i, p in enumerate(params) if is_buffer_var(p) or is_pointer(p)]
        written = [i for i in tensors if i in self.artifact.written]
        signed = [i for i in tensors if _may_be_negated(params[i])]
        self._call = as_torch_operator(
            self._launch, self.name, len(params), tensors, written, signed
        )
        if self._run == self._launch_or_dispatch:
            self._run = self._call
        self._call(*args)

    def _run_converted(
        self, given: tuple[Any, ...], error: Exception
    ) -> tuple[Exception | None, Any]:
        """Call with arguments converted that TVM has refused, or say which one does not fit.

        Where TVM refuses an argument, nothing has run: no kernel runs twice.

        Parameters
        ----------
        given : tuple
            What the call was given.
        error : Exception
            Why the call failed.

        Returns
        -------
        Exception or None, results
            What to raise; None where the converted arguments were accepted.
        """
        args = given
        with suppress(Exception):  # results of unknown shapes: what is wrong is said below
            args = self._completed(given)
        prepared = self._converted(args)
        if prepared is not None:
            try:
                self._call(*prepared)
            except Exception as second:  # noqa: BLE001
                error = second
            else:
                return None, self._results_in(prepared)
        from tvmtile.jit.failures import launch_failure

        explained = explain(
            self.name, list(self.prim_func.params), self.out_idx, given, self.adapter.device
        )
        return explained or launch_failure(self.prim_func, error), None

    def _converted(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """All arguments as TVM takes them, or None where nothing needs converting."""
        if len(args) != len(self._stored):
            return None
        complete = self._with_memory_for_none(args)
        return ready(complete, self._stored) or (None if complete is args else complete)

    def _with_memory_for_none(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with tensors in place of None.

        None may be given for a tensor that the program does not use.
        """
        if all(arg is not None for arg in args):
            return args
        complete = list(args)
        allocate = allocator(args, self.adapter.device)
        extents = bound_extents(self._stored, complete)
        for index, param in enumerate(self._stored):
            is_used = self._uses(self.prim_func.params[index])
            if args[index] is None and is_buffer_var(param) and not is_used:
                # An extent that nobody asks for and no other argument has is of any size.
                unknown = {var for extent in param.ty.shape for var in variables_of(extent)}
                extents.update({v: 1 for v in unknown - extents.keys() if not self._uses(v)})
                shape = tuple(evaluate(extent, extents) for extent in param.ty.shape)
                complete[index] = allocate(shape, str(param.ty.dtype), None)
        return tuple(complete)

    def _uses(self, var: ir.Var) -> bool:
        return mentions(self.prim_func.body, var)

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
        from tvmtile.jit.profile import profile

        return profile(self, tensors, warmup, rep, device)

    def run_once(self, func: Callable[..., object] | None = None) -> Any:
        """Call the kernel, or a function, once with inputs that a profiler makes."""
        return self.get_profiler().run_once(func)

    def show_source(self, kernel_only: bool = True) -> None:
        """Print the code that was generated."""
        sys.stdout.write(self.get_kernel_source(kernel_only) + "\n")

    @property
    def cubin(self) -> bytes:
        """The machine code of a CUDA kernel, an ELF file.

        Raises
        ------
        InvalidOperand
            If the kernel is for another target.
        CudaCompileError
            If NVRTC refuses the kernel's source.
        """
        from tvmtile.jit.failures import translate_failures

        with translate_failures(self.prim_func, self.target):
            return self._cuda_adapter("cubin").binary.cubin

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
        from tvmtile.jit.failures import translate_failures

        with translate_failures(self.prim_func, self.target):
            log = self._cuda_adapter("resources()").binary.log
        return resources_of(log, dict(self.lowering)["tvmtile.LowerTilePrograms"][self.name])

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
        from tvmtile.passes.tile.select_implementation import Choices, choices_of
        from tvmtile.passes.tile.warp_specialize import roles_of

        steps = self.lowering
        chosen = choices_of(module_before("tvmtile.LowerTileOp", steps)[self.name])
        if self.target.kind.name != "cuda":
            return chosen
        loops = roles_of(module_before("tvmtile.WarpSpecialize", steps)[self.name])
        return Choices([*loops, *chosen])


def _may_be_negated(param: ir.Var) -> bool:
    """Tell whether a tensor given for a parameter may have torch's negative bit."""
    return is_pointer(param) or str(param.ty.dtype) in _PARTS


def _described(param: KernelParam) -> str:
    """A parameter as a kernel writes it."""
    return f"{param.dtype}[{', '.join(map(str, param.shape))}]" if param.shape else str(param.dtype)


def _compiled_again(program: list[Node], options: Mapping[str, Any]) -> Kernel:
    """The kernel that was pickled."""
    from tvmtile.jit.compiler import compile as compile_program

    return compile_program(from_data(program), **options)
