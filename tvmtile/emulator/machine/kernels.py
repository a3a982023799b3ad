"""The kernels of a compiled module, whatever the language of their source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from tvmtile.emulator.machine.launching import Image
from tvmtile.emulator.machine.toolchain import FrontEnd
from tvmtile.errors import ArgumentError, hide_internal_frames


class _Signature(Protocol):
    @property
    def name(self) -> str: ...


Made = TypeVar("Made", bound="EmulatedKernel[Any]")
Signature = TypeVar("Signature", bound=_Signature)


class EmulatedKernel(Generic[Signature]):
    """A kernel that runs on the host."""

    def __init__(self, module: Module[Any], signature: Signature, image: Image) -> None:
        self.module = module
        self.signature = signature
        self._image = image


class Module(Generic[Made]):
    """The kernels of a source, compiled for the host."""

    _kernel: ClassVar[type[Any]]

    def __init__(
        self, source: str, signatures: Sequence[_Signature], front_end: FrontEnd, library: Path
    ) -> None:
        self.source = source
        self.library = library
        self._language = front_end.language
        self._signatures = {signature.name: signature for signature in signatures}
        self._image = Image(front_end, library)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """The kernels' names, in the order of the source."""
        return tuple(self._signatures)

    @hide_internal_frames
    def kernel(self, name: str) -> Made:
        """Get a kernel.

        Raises
        ------
        ArgumentError
            If the source has no kernel of that name.
        """
        if name not in self._signatures:
            raise ArgumentError(
                f"no kernel {name!r} in the {self._language} source, "
                f"which has {', '.join(self._signatures) or 'none'}",
                help="a kernel that a macro or a template instantiation makes is not seen",
            )
        kernel: Made = self._kernel(self, self._signatures[name], self._image)
        return kernel
