"""The parts that examples share: their arguments, the check against float64, and the measurement."""

import argparse
import time
from statistics import median

import torch

from tvmtile.target import resolve

# The error is relative to the largest element of the reference, so these hold for any K of a size that
# one computes with: rounding the result to 11 or 8 bits outweighs what the sum loses in float32.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
# The tensor cores of NVIDIA's GPUs read float32 as tf32, which has float16's 11 bits.
TOLERANCE_OF_TF32 = TOLERANCE[torch.float16]

# A GPU's emulator executes some million instructions a second.
EMULATED_SIZE = 128


def parse(doc, argv, **sizes):
    """The arguments of an example: --target, --check, and one for each of `sizes`.

    That is an integer, or one of several words, the first where absent. Beside these the result has
    `on_gpu`, and `device`, where torch's tensors must be.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--target", help="what to compile for (default: this machine)")
    parser.add_argument(
        "--check", action="store_true", help="compare with a float64 reference, measure nothing"
    )
    for name, default in sizes.items():
        if isinstance(default, tuple):
            parser.add_argument(f"--{name}", choices=default, default=default[0])
            continue
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=int,
            help=f"(default: {default}; at most {EMULATED_SIZE} in an emulator)",
        )
    args = parser.parse_args(argv)
    kind = str(resolve(args.target).kind)
    args.on_gpu = kind != "llvm"
    args.device = device_of(kind)
    is_emulated = args.on_gpu and args.device == "cpu"
    for name, default in sizes.items():
        if getattr(args, name) is None:
            setattr(args, name, min(default, EMULATED_SIZE) if is_emulated else default)
    return args


def device_of(kind):
    """The device of torch's tensors for a kind of target."""
    if kind == "metal" and torch.backends.mps.is_available():
        return "mps"
    if kind == "cuda" and torch.cuda.is_available():
        return "cuda"
    return "cpu"


def tiles(args, **on_gpu):
    """The tile sizes `on_gpu` for a GPU, whose threads share 32 KiB; an example's own elsewhere."""
    return on_gpu if args.on_gpu else {}


def check(result, reference):
    """Stop with an error if `result` is further from a float64 reference than rounding explains."""
    assert reference.dtype == torch.float64, reference.dtype
    assert result.shape == reference.shape, (result.shape, reference.shape)
    tolerance = TOLERANCE[result.dtype]
    if result.is_cuda:
        tolerance = max(tolerance, TOLERANCE_OF_TF32)
    result = result.cpu()
    largest = reference.abs().max().clamp_min(torch.finfo(torch.float64).tiny)  # all may be 0
    error = ((result.double() - reference).abs().max() / largest).item()
    print(f"relative error {error:.1e} (at most {tolerance:.0e})")
    if not error <= tolerance:  # NaN is an error too
        raise SystemExit("the result is wrong")


def check_equal(result, reference):
    """Stop with an error if a bit of `result` is not that of `reference`; -0 is not 0, NaN is NaN."""
    assert result.dtype == reference.dtype, (result.dtype, reference.dtype)
    assert result.shape == reference.shape, (result.shape, reference.shape)
    bits = [x.cpu().contiguous().view(torch.uint8) for x in (result, reference)]
    if not torch.equal(*bits):
        raise SystemExit("the result is wrong")
    print("equal bit for bit")


def medians(*functions, rounds=10, seconds=5):
    """The median time of each function in milliseconds; they take turns, so noise hits all alike.

    There are so many `rounds`, fewer if they would take more than so many `seconds`.
    """
    for function in functions:
        function()  # the first call warms up
    times = [[] for _ in functions]
    deadline = time.perf_counter() + seconds
    for round_ in range(rounds):
        if round_ and time.perf_counter() > deadline:
            break
        for function, ours in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            ours.append((time.perf_counter() - start) * 1e3)
    return [median(ours) for ours in times]


def check_or_measure(args, kernel, inputs, reference, exact=False):
    """Compare a kernel with its reference in float64, or measure both on the same inputs.

    Where a reference is `exact`, it has the kernel's dtypes, and all bits are compared.
    """
    there = [x.to(args.device) for x in inputs]
    if args.check and exact:
        for ours, theirs in zip(as_list(kernel(*there)), as_list(reference(*inputs)), strict=True):
            check_equal(ours, theirs)
        return
    if args.check:
        wide = [x.double() if x.is_floating_point() else x for x in inputs]
        results = zip(as_list(kernel(*there)), as_list(reference(*wide)), strict=True)
        for ours, theirs in results:
            check(ours, theirs)
        return
    ours, theirs = medians(
        lambda: finished(args, kernel(*there)), lambda: finished(args, reference(*there))
    )
    print(f"kernel {ours:.2f} ms, torch {theirs:.2f} ms: {theirs / ours:.2f} times its speed")


def as_list(results):
    """The results of a function, one tensor or several, as a list."""
    return list(results) if isinstance(results, list | tuple) else [results]


def finished(args, result):
    """A result that the GPU has computed."""
    if args.device == "mps":
        torch.mps.synchronize()
    elif args.device == "cuda":
        torch.cuda.synchronize()
    return result
