"""Calling a compiled program: its arguments on their way to compiled code, and its results back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import update_wrapper
from typing import Any, Generic, overload

from tvm import ir, tirx

from tvmtile._tvm import is_buffer_var
from tvmtile.errors import (
    ArgumentError,
    CudaCompileError,
    EmulationError,
    MetalCompileError,
    MissingDependency,
    OutOfBounds,
    TileError,
    as_shown,
    warn,
)
from tvmtile.ir.alignment import ELEMENTS, WIDEST, failed_tensor, unaligned
from tvmtile.ir.rewriting import mentions, variables_of
from tvmtile.jit.adapter import Adapter
from tvmtile.jit.arguments import explain, ready
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.dynamo import is_traced, untraced
from tvmtile.jit.signature import Allocation, KernelSignature, is_pointer, sources_in
from tvmtile.jit.signatures import Argument, Array, One, Results, Unknown
from tvmtile.jit.threads import leave_daemon, prepare_thread_pool
from tvmtile.library import allocator

PROGRAM_FAILURES = (
    CudaCompileError,
    EmulationError,
    MetalCompileError,
    MissingDependency,
    OutOfBounds,
)
"""Nothing is wrong with the arguments then."""

_PARTS = ("float16", "float32", "float64")
"""The dtypes of parts of complex numbers."""


class CompiledProgram(Generic[Results]):
    """What a kernel is called by."""

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
        self._class = type(self)
        self._launch = adapter.call
        self._call: Callable[..., None] = self._launch_or_dispatch
        self.signature = KernelSignature.of(prim_func, out_idx)
        self._stored = self.signature.stored
        self._versions: dict[frozenset[str], CompiledProgram[Any]] = {}
        prepare_thread_pool()

    @overload
    def __call__(self: CompiledProgram[Unknown], *args: Any, **named: object) -> Any: ...
    @overload
    def __call__(
        self: CompiledProgram[One], *args: Argument[Array], **named: Argument[Array]
    ) -> Array: ...
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
        problem, results = self._called(args, named)
        if problem is not None:
            raise problem  # here, so that no frames of ours follow
        return results

    def _called(
        self, args: tuple[Any, ...], named: Mapping[str, object]
    ) -> tuple[Exception | None, Any]:
        """Run the kernel: what to raise, or what it made."""
        if named:
            placed = self.signature.bind(args, named)
            if isinstance(placed, ArgumentError):
                return placed, None
            args = placed
        try:
            complete = self.signature.completed(args, self.adapter.device)
            self._call(*complete)
        except PROGRAM_FAILURES as error:
            return as_shown(error), None
        except Exception as error:  # noqa: BLE001 - TVM raises several kinds
            return self._run_converted(args, error)
        return None, self.signature.returned(complete)

    def _launch_or_dispatch(self, *args: object) -> None:
        """The first calls: torch's tensors are called for what they are once there is torch."""
        leave_daemon()
        if sys.modules.get("torch") is None:
            self._launch(*args)
            return
        from tvmtile.jit.torch_calls import as_torch_operator

        params = list(self.prim_func.params)
        tensors = sorted((*self.signature.tensors, *self.signature.pointers))
        written = [i for i in tensors if i in self.artifact.written]
        signed = [i for i in tensors if _may_be_negated(params[i])]
        calls = as_torch_operator(self._launch, self.name, len(params), tensors, written, signed)
        self._call = calls.function
        if not (self.out_idx or self.signature.has_packed):
            own = type(self)  # Python looks for `__call__` in a class alone
            method = update_wrapper(calls.method, own.__call__)
            names = {"__call__": method, "__module__": own.__module__}
            self.__class__ = type(own.__name__, (own,), names)
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
            args = self.signature.completed(given, self.adapter.device)
        prepared = self._converted(args)
        if prepared is not None:
            try:
                self._call(*prepared)
            except Exception as second:  # noqa: BLE001
                error = second
            else:
                return None, self.signature.returned(prepared)
        failed_at = failed_tensor(str(error))
        if failed_at is not None:
            return self._run_unaligned(args if prepared is None else prepared, *failed_at)
        from tvmtile.jit.failures import failed_assumption, launch_failure

        failed = failed_assumption(self.prim_func, error)
        explained = explain(self.signature, given, self.adapter.device, failed)
        return explained or launch_failure(self.prim_func, error), None

    def _run_unaligned(
        self, args: tuple[Any, ...], name: str, must: str
    ) -> tuple[Exception | None, Any]:
        """Call a version of the program for tensors that begin where these do, or have no elements."""
        names = {name, *self._unaligned(args)}
        try:
            self._version(frozenset(names), must)._call(*args)
        except TileError as error:
            return error, None
        return None, self.signature.returned(args)

    def _unaligned(self, args: tuple[Any, ...]) -> frozenset[str]:
        """The parameters whose tensors begin between two of the widest vectors."""
        given = zip(self.prim_func.params, args, strict=True)
        return frozenset(param.name for param, arg in given if self.adapter.offset(arg) % WIDEST)

    def _launch_version(self, *args: object) -> None:
        """Launch the version for tensors that begin where these do."""
        version = self._versions.get(self._unaligned(args))
        launch = self.adapter.call if version is None else version._launch
        launch(*args)

    def _version(self, names: frozenset[str], must: str) -> CompiledProgram[Any]:
        """The program without vectors of the named parameters, compiled when it is first needed.

        It is not faster, though these don't do what they `must`.

        Raises
        ------
        ArgumentError
            If it can't do without.
        """
        from tvmtile.jit.compiler import compile as compile_program

        if names not in self._versions:
            them = ", ".join(sorted(names))
            what = f"{self.name}: {them} must {must}"
            remedy = "pass a copy, `x.clone()` or `x.copy()`"
            if must == ELEMENTS:
                remedy = "let T.copy do without tensor maps, `disable_tma=True`"
            try:
                self._versions[names] = compile_program(
                    unaligned(self.prim_func, names),
                    target=self.target,
                    execution_backend=self.adapter.backend,
                    pass_configs=self._config,
                )
            except TileError as error:
                raise ArgumentError(f"{what}: {error}", help=remedy) from error
            warn(f"{what} to be fast; a version of the kernel for others was compiled")
            # From now on it is looked at where tensors begin: an exception a call would cost more.
            self._launch, self._call = self._launch_version, self._launch_or_dispatch
            self.__class__ = self._class
        return self._versions[names]

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
        sources = sources_in(self._stored, args)
        for index, param in enumerate(self._stored):
            is_used = self._uses(self.prim_func.params[index])
            if args[index] is None and is_buffer_var(param) and not is_used:
                # An extent that nobody asks for and no other argument has is of any size.
                unknown = {var for extent in param.ty.shape for var in variables_of(extent)}
                sources.update({v: 1 for v in unknown - sources.keys() if not self._uses(v)})
                unused = Allocation.of(index, param, sources)
                complete[index] = allocate(unused.shape(args), unused.dtype, None)
        return tuple(complete)

    def _uses(self, var: ir.Var) -> bool:
        return mentions(self.prim_func.body, var)


def _may_be_negated(param: ir.Var) -> bool:
    """Tell whether a tensor given for a parameter may have torch's negative bit."""
    return is_pointer(param) or str(param.ty.dtype) in _PARTS
