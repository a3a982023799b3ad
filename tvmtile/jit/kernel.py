"""A kernel: what a user calls, with an executable for each kind of device that its tensors are on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from functools import update_wrapper
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, overload

from tvm import tirx
from tvm.target import Target

from tvmtile.compat.absent import no_attribute
from tvmtile.errors import ArgumentError, InvalidOperand
from tvmtile.jit.backends import best_target, target_of, target_on
from tvmtile.jit.dynamo import is_traced, untraced
from tvmtile.jit.executable import Executable
from tvmtile.jit.inspection import Inspection
from tvmtile.jit.ir_data import Node, from_data, to_data
from tvmtile.jit.signature import KernelParam, KernelSignature
from tvmtile.jit.typing import Argument, Array, One, Results, Unknown

if TYPE_CHECKING:
    from torch.library import CustomOpDef

    from tvmtile.profiler import Profiler, TensorSupplyType
    from tvmtile.profiler.kernel_profile import KernelProfile
    from tvmtile.target.devices import TileDevice


class Kernel(Inspection, Generic[Results]):
    """A tile program compiled for a target.

    Call it with the parameters of the program, in order, without those that are results: these are
    allocated, on the device of the first tensor, and returned. Tensors are passed without copies.
    Arguments are checked by the compiled code before anything runs.

    A kernel without a target is built for the kind of device of its tensors, once for each kind. What
    can be seen of it is that of the build that was called last, before any call of the best one that
    this machine has.

    Attributes
    ----------
    prim_func : tvm.tirx.PrimFunc
        The tile program.
    out_idx : tuple of int
        Which parameters are results.
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
        out_idx: tuple[int, ...],
        executable: Executable | None = None,
        compile_for: Callable[[str], Executable] | None = None,
    ) -> None:
        self.prim_func = prim_func
        self.out_idx = out_idx
        self.signature = KernelSignature.of(prim_func, out_idx)
        self.name = self.signature.name
        self._fixed = executable
        self._last = executable
        self._compile_for = compile_for
        self._executables: dict[str, Executable] = {}
        self._on_devices: dict[object, Executable] = {}

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
        if is_traced():
            return untraced(self, args, named)
        problem, results = self._outcome(args, named)
        if problem is not None:
            raise problem  # here, so that no frames of ours follow
        return results

    def _outcome(
        self, args: tuple[Any, ...], named: Mapping[str, object]
    ) -> tuple[Exception | None, Any]:
        """The error of a call, and its result; the next one may enter its executable at once."""
        executable = self._fixed
        if executable is None:
            if named:
                placed = self.signature.bind(args, named)
                if isinstance(placed, ArgumentError):
                    return placed, None
                args, named = placed, {}
            executable = self._on_device(args) or self._on_device_of(args)
        self._last = executable
        outcome = executable.run(args, named)
        if executable.method is not None and (executable is self._fixed or self._on_device(args)):
            if executable.caller is None:  # Python looks for `__call__` in a class alone
                method = update_wrapper(executable.method, Kernel.__call__)
                names = {"__call__": method, "__module__": Kernel.__module__}
                executable.caller = type(Kernel.__name__, (Kernel,), names)
            self.__class__ = executable.caller
        return outcome

    def _on_device(self, args: tuple[Any, ...]) -> Executable | None:
        return self._on_devices.get(getattr(args[0], "device", None)) if args else None

    def _on_device_of(self, args: tuple[Any, ...]) -> Executable:
        executable = self._for(target_of(args) or best_target())
        # A tensor on a GPU decides; of the others, a later one may be on a GPU.
        device = getattr(args[0], "device", None) if args else None
        if device is not None and target_on(device) != "llvm":
            self._on_devices[device] = executable
        return executable

    def _for(self, target: str) -> Executable:
        assert self._compile_for is not None, "a kernel with a target has its executable"
        if target not in self._executables:
            self._executables[target] = self._compile_for(target)
            self._executables[target].follows = True
        return self._executables[target]

    @property
    def executable(self) -> Executable:
        """The executable called last; before any call, that for the best device of this machine."""
        return self._last or self._for(best_target())

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

    # Measuring it ----------------------------------------------------------------------------

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

    def get_tuner_result(self) -> dict[str, Any]:
        """The autotuner's choice: `latency`, `config` and `ref_latency`.

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
        where = "the device of its tensors"
        if self._fixed is not None:
            where = str(self.target.attrs.get("arch", self.target.kind.name))
        return f"<Kernel {self.name}({params}){results} for {where}>"


def _described(param: KernelParam) -> str:
    """A parameter as a kernel writes it."""
    return f"{param.dtype}[{', '.join(map(str, param.shape))}]" if param.shape else str(param.dtype)


def _compiled_again(program: list[Node], options: Mapping[str, Any]) -> Kernel:
    """The kernel that was pickled."""
    from tvmtile.jit.compiler import compile as compile_program

    return compile_program(from_data(program), **options)
