"""`@tvmtile.jit`: kernels that are compiled when they are first called."""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

from tvm import tirx
from typing_extensions import Unpack

from tvmtile.compat.ignored import warn_ignored
from tvmtile.errors import (
    ArgumentError,
    InvalidValue,
    SyntaxNotSupported,
    hide_internal_frames,
    warn,
)
from tvmtile.frontend.parameters import TensorSpec
from tvmtile.frontend.syntax import parse_definition
from tvmtile.jit.backends import chosen_target, target_of
from tvmtile.jit.compiler import compile as compile_program
from tvmtile.jit.compiler import par_compile, refuse_unknown
from tvmtile.jit.dynamo import is_traced, untraced
from tvmtile.jit.kernel import Kernel
from tvmtile.jit.specialisation import (
    EAGER,
    LAZY,
    MANY,
    Arguments,
    Description,
    Kept,
    Surroundings,
    hashable,
    is_tensor,
    written_style,
)
from tvmtile.jit.typing import (
    CalledWhenCompiled,
    JitOptions,
    Makes,
    One,
    Parameters,
    Results,
    Unstated,
)
from tvmtile.target import TargetLike


@overload
def jit(
    func: Callable[Parameters, Makes], *, out_idx: int, **options: Unpack[JitOptions]
) -> JitFunction[Parameters, Makes, One]: ...
@overload
def jit(
    func: Callable[Parameters, Makes],
    *,
    out_idx: Sequence[int] | None = None,
    **options: Unpack[JitOptions],
) -> JitFunction[Parameters, Makes, Unstated]: ...
@overload
def jit(
    func: None = None, *, out_idx: int, **options: Unpack[JitOptions]
) -> Callable[[Callable[Parameters, Makes]], JitFunction[Parameters, Makes, One]]: ...
@overload
def jit(
    func: None = None, *, out_idx: Sequence[int] | None = None, **options: Unpack[JitOptions]
) -> Callable[[Callable[Parameters, Makes]], JitFunction[Parameters, Makes, Unstated]]: ...
def jit(
    func: Callable[..., Any] | None = None,
    *,
    out_idx: int | Sequence[int] | None = None,
    target: TargetLike | None = None,
    execution_backend: str | None = "auto",
    pass_configs: Mapping[str, Any] | None = None,
    scope: Mapping[str, Any] | None = None,
    target_host: TargetLike | None = None,
    verbose: bool | None = None,
    debug_root_path: str | None = None,
    compile_flags: Any = None,
    **unknown: Any,
) -> Any:
    """Compile a kernel when it is called, once for every specialisation.

    Parameters
    ----------
    func : callable or tvm.tirx.PrimFunc
        In the lazy style, a function of Python values that returns a `T.prim_func`; calling it returns
        the compiled `Kernel`. In the eager style, the kernel itself, with tensors described in its
        body; calling it runs the kernel and returns what it returns. A `T.prim_func` has nothing left
        to specialise: it is compiled at once.
    out_idx : int or sequence of int, optional
        Parameters that are results, in the lazy style.
    target : str, dict or Target, optional
        Where it runs. Where absent, a kernel runs where the tensors of a call are, as of
        `tvmtile.compile`.
    execution_backend : str
        As of `tvmtile.compile`.
    pass_configs : mapping, optional
        Options of TVM's passes.
    scope : mapping, optional
        Names around the definition, for annotations that are strings; the caller's where absent.
    target_host, verbose, debug_root_path
        Accepted with a warning, as by `tvmtile.compile`.
    compile_flags
        As of `tvmtile.compile`.

    Returns
    -------
    JitFunction or Kernel
        Callable; `.compile(...)` only compiles, `.get_tir(...)` returns the tile program. For a
        `T.prim_func`, its `Kernel`.

    Raises
    ------
    InvalidOperand
        If an option is none of these; the message offers the nearest one.
    """
    refuse_unknown("jit", unknown, jit)
    given = {"verbose": verbose, "debug_root_path": debug_root_path}
    warn_ignored("tvmtile.jit", **given, target_host=target_host)
    options = {
        "target": target,
        "execution_backend": execution_backend,
        "pass_configs": pass_configs,
        "compile_flags": compile_flags,
    }
    names = dict(sys._getframe(1).f_locals if scope is None else scope)

    def decorate(function: Callable[..., Any] | tirx.PrimFunc) -> JitFunction | Kernel:
        if isinstance(function, tirx.PrimFunc):
            return compile_program(function, out_idx=out_idx, **options)
        return JitFunction(function, names, out_idx, options)

    return hide_internal_frames(decorate) if func is None else decorate(func)


class JitFunction(CalledWhenCompiled[Parameters, Makes, Results]):
    """A kernel under `@tvmtile.jit`; compiled kernels are kept for every specialisation.

    Attributes
    ----------
    func : callable
        The decorated function.
    signature : inspect.Signature
        Its parameters.
    """

    __slots__ = ("_instance",)
    _instance: Any
    """The object of a method: held by it alone, the rest is shared with others of the object."""

    def __init__(
        self,
        func: Callable[..., Any],
        scope: Mapping[str, Any],
        out_idx: Any,
        options: Mapping[str, Any],
    ) -> None:
        functools.update_wrapper(self, func)
        self.func = func
        self._style = written_style(func)
        self._out_idx = out_idx
        self._options = dict(options)
        self._kernels: Kept[Kernel] = Kept()
        self._arguments = Arguments(func)
        self.signature = self._arguments.signature
        self._scope = scope
        self._descriptions: Kept[Any] = Kept()
        self._of_instances: dict[int, dict[str, Any]] = {}
        if self._style == EAGER:
            self._refuse_out_idx()
            self._refuse_unnamed()

    def __repr__(self) -> str:
        name, count = self.func.__qualname__, len(self._kernels)
        return f"<tvmtile.jit {name}{self.signature}, {self.mode}, {count} compiled>"

    @property
    def options(self) -> dict[str, Any]:
        """The options of its kernels, as `tvmtile.compile` takes them."""
        return {**self._options, "out_idx": self._out_idx}

    @property
    def mode(self) -> str:
        """The style: "eager" or "lazy"; "auto" before the first call where only that can tell."""
        return self._style or "auto"

    @property
    def annotations(self) -> Mapping[str, Any]:
        """The annotations of run-time parameters in the signature, in the eager style."""
        return self._eager.annotations

    @functools.cached_property
    def _eager(self) -> Any:
        from tvmtile.frontend.eager import EagerFunction

        return EagerFunction(self.func, self._scope)

    def __get__(self, instance: Any, owner: Any = None) -> JitFunction:
        """A method's kernel: `self` is a constant of it, and each object has kernels of its own."""
        if instance is None or next(iter(self.signature.parameters), None) != "self":
            return self
        method = JitFunction.__new__(JitFunction)
        method._instance = instance
        method.__dict__ = self._of_instances.get(id(instance)) or self._bound(instance)
        return method

    def _bound(self, instance: Any) -> dict[str, Any]:
        """The attributes of a method's function, kept as long as the object lives."""
        try:
            weak = weakref.proxy(instance)
        except TypeError:  # nobody would say when such an object is gone
            return vars(self._of(instance))
        weakref.finalize(instance, self._of_instances.pop, id(instance), None)
        return self._of_instances.setdefault(id(instance), vars(self._of(weak)))

    def _of(self, instance: Any) -> JitFunction:
        method = types.MethodType(self.func, instance)
        return JitFunction(method, self._scope, self._out_idx, self._options)

    @functools.cached_property
    def _surroundings(self) -> Surroundings:
        return Surroundings(self.func)

    def _is_lazy(self) -> bool:
        """Tell the style; where the source did not show it before, by what has been defined since."""
        if self._style is None:
            annotations = self._eager.annotations.values()
            describes = any(isinstance(each, TensorSpec) for each in annotations)
            style = written_style(self.func) or (EAGER if describes else LAZY)
            if style == EAGER:
                self._refuse_out_idx()
            self._style = style
        return self._style == LAZY

    def _refuse_out_idx(self) -> None:
        if self._out_idx is not None:
            raise InvalidValue(
                f"out_idx={self._out_idx} is for functions that return a T.prim_func",
                help=f"{self.func.__name__} is a kernel in the eager style: make its results with "
                "T.empty and return them",
            )

    def _refuse_unnamed(self) -> None:
        """Refuse a kernel in the eager style whose own text or parameters are not to be seen."""
        name = self.func.__name__
        if hasattr(self.func, "__wrapped__"):
            raise SyntaxNotSupported(
                f"{name} is a kernel in the eager style, in a function that wraps it",
                help="decorate the kernel by @tvmtile.jit itself, and wrap what comes of it",
            )
        for parameter in self.signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise SyntaxNotSupported(
                    f"{name} is a kernel in the eager style with the parameter {parameter}",
                    help="name each of its tensors and constants",
                )

    def tensors_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The tensors of an eager kernel for these arguments; None in the lazy style."""
        return None if self._is_lazy() else self.specialisation(*args, **kwargs)[2]

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_traced():
            return untraced(self, args, kwargs)
        if self._is_lazy():
            return self._lazy_kernel(args, kwargs)
        kernel, tensors = self.prepared(*args, **kwargs)
        return kernel(*tensors)

    @hide_internal_frames
    def compile(self, *args: Any, **kwargs: Any) -> Kernel[Results]:
        """The compiled kernel for these arguments, without running it.

        In the eager style constants may be given by keyword in place of tensors.
        """
        if self._is_lazy():
            return self._lazy_kernel(args, kwargs)
        return self.prepared(*args, **kwargs)[0]

    @overload
    def par_compile(
        self,
        configs: Iterable[Mapping[str, Any] | Sequence[Any]],
        num_workers: int | None = None,
        ignore_error: Literal[False] = False,
    ) -> list[Kernel[Results]]: ...
    @overload
    def par_compile(
        self,
        configs: Iterable[Mapping[str, Any] | Sequence[Any]],
        num_workers: int | None = None,
        *,
        ignore_error: bool,
    ) -> list[Kernel[Results] | None]: ...
    @hide_internal_frames
    def par_compile(
        self,
        configs: Iterable[Mapping[str, Any] | Sequence[Any]],
        num_workers: int | None = None,
        ignore_error: bool = False,
    ) -> Any:
        """The compiled kernels for several sets of arguments.

        Parameters
        ----------
        configs : iterable of dict or tuple
            Arguments by keyword, or by position.
        num_workers, ignore_error
            As of `tvmtile.par_compile`.
        """
        programs = [
            self.get_tir(**config) if isinstance(config, Mapping) else self.get_tir(*config)
            for config in configs
        ]
        return par_compile(
            programs, num_workers=num_workers, ignore_error=ignore_error, **self.options
        )

    @hide_internal_frames
    def get_tir(self, *args: Any, **kwargs: Any) -> tirx.PrimFunc:
        """The tile program for these arguments."""
        if self._is_lazy():
            return self._program(args, kwargs)
        return self.specialisation(*args, **kwargs)[1]()

    @hide_internal_frames
    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """The code that is generated for these arguments.

        Without arguments, where the function needs some: that of the kernel that was compiled last.
        """
        if not args and not kwargs and self._kernels and self._arguments.are_needed:
            return [*self._kernels.values()][-1].get_kernel_source()
        return self.compile(*args, **kwargs).get_kernel_source()

    def __copy__(self) -> JitFunction:
        return self

    def __deepcopy__(self, memo: Any) -> JitFunction:
        return self

    def __reduce__(self) -> str:
        """Its name, by which Python pickles functions."""
        name = self.func.__qualname__
        if "<locals>" in name:
            raise pickle.PicklingError(
                f"{name} can't be pickled: it is defined in a function, where no other process "
                "finds it; define it in a module, or pickle the kernel that its `compile` returns"
            )
        return name

    def _program(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tirx.PrimFunc:
        self._arguments.check(args, kwargs)
        program = self.func(*args, **kwargs)
        if not isinstance(program, tirx.PrimFunc):
            raise SyntaxNotSupported(
                f"{self.func.__name__} returned a {type(program).__name__}, not a kernel",
                help="return a function decorated with @T.prim_func, or write the kernel in the eager "
                "style, with T.Kernel in the function itself",
            )
        return program

    def _check_source(self) -> None:
        """Refuse a kernel without source: what is given a tensor is one, in the eager style."""
        code = getattr(inspect.unwrap(self.func), "__code__", None)
        if code is not None and code.co_name != "<lambda>":
            parse_definition(code)

    def _lazy_kernel(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kernel:
        if any(map(is_tensor, (*args, *kwargs.values()))):
            self._check_source()
        key = hashable((args, tuple(sorted(kwargs.items())), self._surroundings.values()))
        kernel = self._kernels.get(key)
        if kernel is None:
            program = self._program(args, kwargs)
            kernel = compile_program(program, out_idx=self._out_idx, **self._options)
            self._kernels[key] = kernel
        return kernel

    def prepared(self, *args: Any, **kwargs: Any) -> tuple[Kernel, list[Any]]:
        """The kernel of a call in the eager style, and what it is run on."""
        key, build, tensors = self.specialisation(*args, **kwargs)
        kernel = self._kernels.get(key)
        if kernel is None:
            options = dict(self._options)
            if options["target"] in (None, "auto"):
                options["target"] = chosen_target() or target_of(tensors)
            kernel = self._kernels[key] = compile_program(build(), **options)
            if len(self._kernels) == MANY:
                warn(
                    f"{self.func.__name__} was compiled for {MANY} sets of extents and constants: let "
                    'extents that change from call to call be T.dynamic("n")'
                )
        return kernel, tensors

    def specialisation(
        self, *args: Any, **kwargs: Any
    ) -> tuple[Any, Callable[[], tirx.PrimFunc], list[Any]]:
        """The key of an eager call's program, how to trace it, and what it is run on."""
        own = {k: v for k, v in kwargs.items() if k in self.signature.parameters}
        extra = {k: v for k, v in kwargs.items() if k not in own}
        arguments = self._arguments.by_name(args, own)
        runtime = self.annotations
        tensors = {n: v for n, v in arguments.items() if is_tensor(v) or n in runtime}
        constants = {n: v for n, v in arguments.items() if n not in tensors}
        names = {*tensors, *(self.signature.parameters.keys() - arguments.keys())}
        key = (hashable(constants), frozenset(names), self._surroundings.values())
        description = self._descriptions.get(key)
        if description is None:
            description = Description(*self._eager.describe(constants, names))
            self._descriptions[key] = description
        for name in extra.keys() - description.constants.keys():
            raise ArgumentError(
                f"{self.func.__name__} has neither a parameter nor a constant {name!r}",
                help=f"its parameters are {self.signature}, its constants "
                f"{', '.join(description.constants) or 'none'}",
            )
        values = description.values(tensors, extra)
        return (
            (key, tuple(sorted(values.items())), target_of(tensors.values())),
            lambda: self._eager.build(constants, names, values),
            list(tensors.values()),
        )
