"""Calling what was compiled for a device: arguments on their way to compiled code, and results back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tvm import ir

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
from tvmtile.jit.arguments import explain, failed_assumption, launch_failure, ready
from tvmtile.jit.artifact import Artifact
from tvmtile.jit.backends import adapter_for
from tvmtile.jit.signature import Allocation, KernelSignature, sources_in
from tvmtile.jit.threads import leave_daemon, prepare_thread_pool
from tvmtile.library import allocator

if TYPE_CHECKING:
    from tvmtile.jit.compiler import Request
    from tvmtile.jit.torch_calls import TorchCalls

PROGRAM_FAILURES = (
    CudaCompileError,
    EmulationError,
    MetalCompileError,
    MissingDependency,
    OutOfBounds,
)
"""Nothing is wrong with the arguments then."""


class Executable:
    """A program compiled for one kind of device.

    Attributes
    ----------
    request : Request
        What was compiled, and how.
    artifact : Artifact
        What it was compiled to.
    adapter : Adapter
        What runs it.
    method : callable or None
        `Kernel.__call__` of a kernel without results, once there is torch: a call enters one function.
    caller : type or None
        The class of kernels whose next call enters it.
    follows : bool
        Whether its kernel has others for tensors that are elsewhere.
    """

    caller: type | None = None
    follows: bool = False

    def __init__(self, request: Request, artifact: Artifact) -> None:
        self.request = request
        self.prim_func = request.func
        self.signature = KernelSignature.of(request.func, request.results)
        self.artifact = artifact
        self.adapter = adapter_for(artifact, request.backend, request.func.params)
        self.name = artifact.name
        self.method: Callable[..., Any] | None = None
        self.launch = self.adapter.call
        self._call: Callable[..., None] = self._first_call
        self._torch_calls: TorchCalls | None = None
        self._versions: dict[frozenset[str], Executable] = {}
        prepare_thread_pool()

    def run(
        self, args: tuple[Any, ...], named: Mapping[str, object]
    ) -> tuple[Exception | None, Any]:
        """Run the program on the arguments of a call: what to raise, or what it made."""
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
            return self.run_converted(args, error)
        return None, self.signature.returned(complete)

    def _first_call(self, *args: object) -> None:
        """The first calls: torch's tensors are called for what they are once there is torch."""
        leave_daemon()
        if sys.modules.get("torch") is None:
            self.launch(*args)
            return
        from tvmtile.jit.torch_calls import TorchCalls

        self._torch_calls = calls = TorchCalls(self)
        self._call = calls.function
        if not (self.signature.results or self.signature.has_packed):
            self.method = calls.method
        self._call(*args)

    def run_converted(
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
        launch = self.adapter.call if version is None else version.launch
        launch(*args)

    def _version(self, names: frozenset[str], must: str) -> Executable:
        """The program without vectors of the named parameters, compiled when it is first needed.

        It is not faster, though these don't do what they `must`.

        Raises
        ------
        ArgumentError
            If it can't do without.
        """
        if names not in self._versions:
            them = ", ".join(sorted(names))
            what = f"{self.name}: {them} must {must}"
            remedy = "pass a copy, `x.clone()` or `x.copy()`"
            if must == ELEMENTS:
                remedy = "let T.copy do without tensor maps, `disable_tma=True`"
            try:
                request = replace(self.request, func=unaligned(self.prim_func, names), results=())
                self._versions[names] = request.executable()
            except TileError as error:
                raise ArgumentError(f"{what}: {error}", help=remedy) from error
            warn(f"{what} to be fast; a version of the kernel for others was compiled")
            # From now on it is looked at where tensors begin: an exception a call would cost more.
            self.launch = self._launch_version
            if self._torch_calls is not None:
                self._torch_calls.launch(self.launch)
        return self._versions[names]

    def _converted(self, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """All arguments as TVM takes them, or None where nothing needs converting."""
        if len(args) != len(self.signature.stored):
            return None
        complete = self._with_memory_for_none(args)
        return ready(complete, self.signature.stored) or (None if complete is args else complete)

    def _with_memory_for_none(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with tensors in place of None.

        None may be given for a tensor that the program does not use.
        """
        if all(arg is not None for arg in args):
            return args
        complete = list(args)
        allocate = allocator(args, self.adapter.device)
        sources = sources_in(self.signature.stored, args)
        for index, param in enumerate(self.signature.stored):
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

    @cached_property
    def module(self) -> Any:
        """TVM's module, compiled again where what is in the cache is not all of it."""
        if self.artifact.is_whole:
            return self.artifact.module
        from tvmtile.jit.build import build_artifact

        request = self.request
        return build_artifact(self.prim_func, request.target, "tvm_ffi", request.config).module

    @cached_property
    def lowering(self) -> list[tuple[str, ir.IRModule]]:
        """Each pass that the program went through, with the module after it."""
        from tvmtile.jit.lowering_view import lowering_steps

        return lowering_steps(self.prim_func, self.request.target, self.request.config)
