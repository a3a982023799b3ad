"""Options of compilation, under the names that TileLang gives them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from enum import Enum
from typing import Any

from tvmtile.errors import InvalidValue, warn
from tvmtile.ir.annotations import FAST_MATH, NO_TENSOR_MAPS, ONE_ROLE, OWN_BARRIERS

__all__ = [
    "ALWAYS_SO",
    "EFFECTS",
    "PassConfigKey",
    "PassContext",
    "in_force",
    "warn_without_effect",
    "with_effect",
]


class PassConfigKey(str, Enum):
    """Keys of `pass_configs`.

    Those of `tirx.*` are TVM's and go to TVM's passes. `tl.disable_warp_specialized` and
    `tl.disable_tma_lower` leave kernels without warps of their own for copies, and with the second
    `T.copy` loads and stores no tile by a tensor map. With `tl.enable_fast_math` the functions that
    CUDA has approximations of (`T.exp`, `T.exp2`, `T.exp10`, `T.log`, `T.log2`, `T.log10`, `T.sin`,
    `T.cos`, `T.tan`, `T.tanh`) are these, in float32 and below, quotients and square roots too, and
    subnormals are 0, as they are with `--use_fast_math`; all is exact on other targets, and so is
    `T.pow`, whose approximation has no value for a base below zero. `tl.disable_thread_storage_sync`
    makes a warning of the error for a race that no barrier can prevent; barriers that are needed stand
    all the same. The others of `tl.*` steer TileLang's own passes; where one asks for something that is
    not done here, a warning says so and what there is instead. None of them changes what a program
    computes, fast mathematics aside.
    """

    TL_SIMPLIFY = "tl.Simplify"
    TL_SIMPLIFY_TRANSITIVELY_PROVE_INEQUALITIES = "transitively_prove_inequalities"
    TL_SIMPLIFY_CONVERT_BOOLEAN_TO_AND_OF_ORS = "convert_boolean_to_and_of_ors"
    TL_SIMPLIFY_APPLY_CONSTRAINTS_TO_BOOLEAN_BRANCHES = "apply_constraints_to_boolean_branches"
    TL_SIMPLIFY_PROPAGATE_KNOWNS_TO_PROVE_CONDITIONAL = "propagate_knowns_to_prove_conditional"
    TL_SIMPLIFY_PROPAGATE_KNOWNS_TO_SIMPLIFY_EXPRESSIONS = (
        "propagate_knowns_to_simplify_expressions"
    )
    TL_SIMPLIFY_ENABLE_LET_INLINE = "enable_simplify_let_inline"
    TL_DISABLE_BUFFER_INIT_CHECK = "tl.disable_buffer_init_check"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_DISABLE_PRELOWER_SEMANTIC_CHECK = "tl.disable_prelower_semantic_check"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_DEVICE_COMPILE_FLAGS = "tl.device_compile_flags"
    TL_EMIT_LINE_DIRECTIVES = "tl.emit_line_directives"
    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_ENABLE_REDUCER_PLAN_VERBOSE = "tl.enable_reducer_plan_verbose"
    TL_ENABLE_VECTORIZE_PLANNER_VERBOSE = "tl.enable_vectorize_planner_verbose"
    TL_LAYOUT_COST_MODEL = "tl.layout_cost_model"
    TL_REDUCER_FORCE_BASELINE = "tl.reducer_force_baseline"
    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_SAFE_MEMORY_ACCESS = "tl.disable_safe_memory_legalize"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_ENABLE_ASYNC_COPY = "tl.enable_async_copy"
    TL_ENABLE_LOWER_LDGSTG = "tl.enable_lower_ldgstg"
    TL_ENABLE_LOWER_LDGSTG_PREDICATED = "tl.enable_lower_ldgstg_predicated"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_DEBUG_MERGE_SHARED_MEMORY_ALLOCATIONS = "tl.debug_merge_shared_memory_allocations"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_DISABLE_SHARED_MEMORY_REUSE = "tl.disable_shared_memory_reuse"
    TL_DISABLE_SHUFFLE_ELECT = "tl.disable_shuffle_elect"
    TL_DISABLE_LOOP_UNSWITCHING = "tl.disable_loop_unswitching"
    TL_LOOP_UNSWITCHING_ALLOW_NON_TRIVIAL_ELSE = "tl.loop_unswitching_allow_non_trivial_else"
    TL_IF_STMT_BINDING_INLINE_REPLAYABLE_BINDS = "tl.if_stmt_binding_inline_replayable_binds"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_FORCE_LET_INLINE = "tl.force_let_inline"
    TL_AST_PRINT_ENABLE = "tl.ast_print_enable"
    TL_LAYOUT_VISUALIZATION_ENABLE = "tl.layout_visualization_enable"
    TL_LAYOUT_VISUALIZATION_FORMATS = "tl.layout_visualization_formats"
    TL_STORAGE_REWRITE_DETECT_INPLACE = "tl.storage_rewrite_detect_inplace"
    TL_DISABLE_OUT_OF_BOUND_WARNING = "tl.disable_out_of_bound_warning"
    TL_ENABLE_DUMP_IR = "tl.enable_dump_ir"
    TL_DUMP_IR_DIR = "tl.dump_ir_path"
    TL_PASS_PROFILE = "tl.pass_profile"
    TL_PASS_PROFILE_THRESHOLD_MS = "tl.pass_profile_threshold_ms"
    CUDA_KERNELS_OUTPUT_DIR = "cuda.kernels_output_dir"
    TIR_ENABLE_EQUIV_TERMS_IN_CSE = "tir.enable_equiv_terms_in_cse_tir"
    TIR_SIMPLIFY = "tirx.Simplify"
    TIR_DISABLE_CSE = "tirx.disable_cse_tir"
    TIR_DISABLE_STORAGE_REWRITE = "tirx.disable_storage_rewrite"
    TIR_DISABLE_VECTORIZE = "tirx.disable_vectorize"
    TIR_ENABLE_DEBUG = "tirx.enable_debug"
    TIR_MERGE_STATIC_SMEM = "tirx.merge_static_smem"
    TIR_ADD_LOWER_PASS = "tirx.add_lower_pass"
    TIR_NOALIAS = "tirx.noalias"
    TIR_USE_ASYNC_COPY = "tirx.use_async_copy"


_LOWERING = "kernel.lowering holds the program after each pass"
_SOURCE = "kernel.get_kernel_source() is the generated code"
_SIMPLIFIER = "TVM's simplifier takes its options under 'tirx.StmtSimplify'"
_UNSWITCHING = "a condition is decided before a loop where that lets its accesses be vectors"
_MISTAKES = "only what is certainly wrong is an error"
_WORDS = "T.ldg32 to T.ldg256 and T.stg32 to T.stg256 are such accesses"
_WITHOUT_EFFECT = {
    "tl.Simplify": _SIMPLIFIER,
    "transitively_prove_inequalities": _SIMPLIFIER,
    "convert_boolean_to_and_of_ors": _SIMPLIFIER,
    "apply_constraints_to_boolean_branches": _SIMPLIFIER,
    "propagate_knowns_to_prove_conditional": _SIMPLIFIER,
    "propagate_knowns_to_simplify_expressions": _SIMPLIFIER,
    "tl.ptxas_register_usage_level": "T.annotate_min_blocks_per_sm limits registers",
    "tl.device_compile_flags": "the flags of NVRTC are fixed",
    "tl.emit_line_directives": "errors name the lines of the kernel",
    "tl.config_index_bitwidth": "an index has the width that its tensor's extents need",
    "tl.disable_safe_memory_legalize": "an access that certainly lies inside has no guard",
    "tl.disable_shared_memory_reuse": "tiles share memory only where they would not fit otherwise",
    "tl.storage_rewrite_detect_inplace": "the target's compiler assigns registers",
    "tl.disable_data_race_check": _MISTAKES,
    "tl.disable_prelower_semantic_check": _MISTAKES,
    "tl.disable_wgmma": 'T.gemm(impl="mma") uses other instructions',
    "tl.disable_shuffle_elect": "the target decides how one thread of a warp is chosen",
    "tl.disable_loop_unswitching": _UNSWITCHING,
    "tl.loop_unswitching_allow_non_trivial_else": _UNSWITCHING,
    "tl.enable_lower_ldgstg": _WORDS,
    "tl.enable_lower_ldgstg_predicated": _WORDS,
    "tl.force_let_inline": "a name is replaced by its value where an analysis needs it",
    "tl.layout_cost_model": "T.annotate_layout gives a tile or a fragment another layout",
    "tl.reducer_force_baseline": "there is one implementation of reducers",
    "tl.enable_reducer_plan_verbose": _LOWERING,
    "tl.enable_vectorize_planner_verbose": _LOWERING,
    "tl.debug_merge_shared_memory_allocations": _LOWERING,
    "tl.ast_print_enable": _LOWERING,
    "tl.enable_dump_ir": _LOWERING,
    "tl.dump_ir_path": _LOWERING,
    "tl.pass_profile": _LOWERING,
    "tl.pass_profile_threshold_ms": _LOWERING,
    "tl.layout_visualization_enable": "tvmtile.layout.drawing draws layouts",
    "tl.layout_visualization_formats": "tvmtile.layout.drawing draws layouts",
    "cuda.kernels_output_dir": _SOURCE,
}
"""Options that ask for something that is not done here, with what there is instead."""

_CANNOT_BE_OFF = {
    "enable_simplify_let_inline": _SIMPLIFIER,
    "tirx.Simplify": _SIMPLIFIER,
    "tir.enable_equiv_terms_in_cse_tir": "TVM compares terms as they stand",
    "tl.disable_fast_math": "functions are exact without tl.enable_fast_math",
    "tl.disable_out_of_bound_warning": _MISTAKES,
    "tl.enable_async_copy": "copies of a loop with num_stages=0 are synchronous",
    "tl.if_stmt_binding_inline_replayable_binds": "loops with conditions are pipelined as they stand",
}
"""Options for what is so anyway, and can't be switched off."""

ALWAYS_SO = (
    "tl.disable_buffer_init_check",
    "tl.disable_vectorize_256",
    "tl.enable_aggressive_shared_memory_merge",
)
"""Options for what is so anyway: an emulator looks for memory that is not written, accesses have 128
bits or fewer, and tiles that would not fit share memory. Without the option TileLang chooses."""


def warn_without_effect(config: Mapping[str, Any]) -> None:
    """Warn, once, of options that ask for something that is not done.

    Parameters
    ----------
    config : mapping
        Options by key; a key is a `PassConfigKey` or its text.
    """
    for key, value in config.items():
        name = str(getattr(key, "value", key))
        instead = (_WITHOUT_EFFECT if value else _CANNOT_BE_OFF).get(name)
        if instead is not None:
            warn(f"the option {name}={value!r} has no effect: {instead}")


def with_effect(config: Mapping[str, object]) -> dict[str, object]:
    """The options that TVM or tvmtile knows, by name.

    Parameters
    ----------
    config : mapping
        Options by key; a key is a `PassConfigKey` or its text.
    """
    named = {str(getattr(key, "value", key)): value for key, value in config.items()}
    _refuse_unknown(named)
    known = {key: value for key, value in named.items() if not _is_of_tilelang(key)}
    for effect, keys in EFFECTS.items():
        if any(named.get(key) for key in keys):
            known[effect] = True
    return known


def _refuse_unknown(keys: Iterable[str]) -> None:
    """Refuse what nobody knows; TVM does so itself with what looks like an option of its own."""
    options = [str(key.value) for key in PassConfigKey]
    for key in keys:
        if _is_of_tilelang(key) and key not in options:
            near = difflib.get_close_matches(key, options, n=1)
            raise InvalidValue(
                f"there is no pass option {key!r}",
                help=f"did you mean {near[0]!r}?" if near else "tvmtile.PassConfigKey lists them",
            )


class PassContext:
    """TVM's pass context, `tvm.transform.PassContext`, that takes TileLang's options too.

    TVM's own knows only the options that its C++ code has registered. Programs that are compiled
    inside of `with PassContext(config=...)` have its options; those of their own `pass_configs` come
    first.

    Parameters
    ----------
    opt_level, required_pass, disabled_pass, instruments
        As of TVM's.
    config : mapping, optional
        Options by key, a `PassConfigKey` or its text: of TVM's passes and of `tl.*`.

    Raises
    ------
    InvalidValue
        For an option of `tl.*` that there is not.
    """

    def __init__(
        self,
        opt_level: int = 2,
        required_pass: Sequence[str] | None = None,
        disabled_pass: Sequence[str] | None = None,
        instruments: Sequence[Any] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        import tvm

        named = {str(getattr(key, "value", key)): value for key, value in (config or {}).items()}
        _refuse_unknown(named)
        self._own = {key: value for key, value in named.items() if _is_of_tilelang(key)}
        known = {key: value for key, value in named.items() if key not in self._own}
        self._of_tvm = tvm.transform.PassContext(
            opt_level, required_pass, disabled_pass, instruments, known
        )
        self._tokens: list[Token[Mapping[str, Any]]] = []

    def __enter__(self) -> PassContext:
        """Put the options in force."""
        self._of_tvm.__enter__()
        self._tokens.append(_IN_FORCE.set(self._own))
        return self

    def __exit__(self, *error: Any) -> None:
        """Put those in force that were before."""
        _IN_FORCE.reset(self._tokens.pop())
        self._of_tvm.__exit__(*error)


_IN_FORCE: ContextVar[Mapping[str, Any]] = ContextVar("options of tl.*")


def in_force() -> Mapping[str, Any]:
    """The options of `tl.*` of the `PassContext` around the call."""
    return _IN_FORCE.get({})


EFFECTS = {
    FAST_MATH: ("tl.enable_fast_math",),
    ONE_ROLE: ("tl.disable_warp_specialized", "tl.disable_tma_lower"),
    NO_TENSOR_MAPS: ("tl.disable_tma_lower",),
    OWN_BARRIERS: ("tl.disable_thread_storage_sync",),
}
"""Attributes of functions, each with the keys that set it."""


def _is_of_tilelang(key: str) -> bool:
    """Tell whether an option is of TileLang's own passes, which TVM does not know."""
    prefix, _, _ = key.rpartition(".")
    return prefix.split(".")[0] in ("tl", "cuda") or key in _OF_SIMPLIFY


_OF_SIMPLIFY = {
    *(key.value for key in PassConfigKey if key.name.startswith("TL_SIMPLIFY_")),
    PassConfigKey.TIR_ENABLE_EQUIV_TERMS_IN_CSE.value,
    PassConfigKey.TIR_SIMPLIFY.value,
}
