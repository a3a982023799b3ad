"""Tensor maps that stay encoded between launches, as functions in LLVM's intermediate language.

The host's part of a kernel keeps maps in memory of its module: each of its tensor maps has a table
of entries, found by a hash of all that distinguishes two maps made there, the tensor's address and what
its shape and strides depend on. A map is copied out of an entry and into it while the entry is locked,
so that a thread sees the whole of a map and never another one's. Nobody waits: who finds an entry
locked encodes the map as if it had not been there.
"""

from __future__ import annotations

from functools import cache

ENTRIES = 64
"""Of one tensor map; the layers of a model, say, share a kernel."""

_MAP = 16  # words of 64 bits of a map
_LINE = 8  # of a line of the processor's cache, which two entries do not share
_ODD = -7046029254386353131  # 2^64 over the golden ratio
_RECALL, _KEEP = "tvmtile_recall_map", "tvmtile_keep_map"

_FUNCTION = """\
define i32 @{name}(ptr %map, ptr %address{numbers}) {{
  %n0 = ptrtoint ptr %address to i64
{hash}
  %index = lshr i64 {hashed}, {shift}
  %entry = getelementptr [{size} x i64], ptr @{table}, i64 %index
  %lock = getelementptr i64, ptr %entry, i64 {lock}
  %holder = atomicrmw xchg ptr %lock, i64 1 acquire
  %is_free = icmp eq i64 %holder, 0
  br i1 %is_free, label %locked, label %busy

busy:
  ret i32 0

locked:
{body}
  store atomic i64 0, ptr %lock release, align 8
  ret i32 %done
}}
"""
_COMPARE = """\
  br i1 {same}, label %found, label %end

found:
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %map, ptr align 64 %entry, i64 {bytes}, i1 false)
  br label %end

end:
  %done = zext i1 {same} to i32"""
_STORE = """\
  call void @llvm.memcpy.p0.p0.i64(ptr align 64 %entry, ptr align 8 %map, i64 {bytes}, i1 false)
  %done = add i32 0, 1"""


def recall_name(site: str) -> str:
    """The function that copies a map out of its entry, and returns whether it was there."""
    return f"{_RECALL}_{site}"


def keep_name(site: str) -> str:
    """The function that copies a map into its entry."""
    return f"{_KEEP}_{site}"


def keeps_map(name: str) -> bool:
    """Tell whether a function is one of these."""
    return name.startswith((_RECALL, _KEEP))


@cache
def kept_maps(site: str, count: int) -> str:
    """The table of a site and both of its functions, of a map, an address and `count` numbers."""
    words = range(1 + count)
    table, size = f"tvmtile_kept_maps_{site}", -(-(_MAP + len(words) + 1) // _LINE) * _LINE
    same = ["  %s0 = icmp eq i64 %k0, %n0"]
    for i in words[1:]:
        same += [f"  %e{i} = icmp eq i64 %k{i}, %n{i}", f"  %s{i} = and i1 %s{i - 1}, %e{i}"]
    loads = [f"  %k{i} = load i64, ptr %p{i}, align 8" for i in words]
    stores = [f"  store i64 %n{i}, ptr %p{i}, align 8" for i in words]
    bodies = {
        recall_name(site): [*loads, *same, _COMPARE.format(same=f"%s{count}", bytes=8 * _MAP)],
        keep_name(site): [*stores, _STORE.format(bytes=8 * _MAP)],
    }
    places = [f"  %p{i} = getelementptr i64, ptr %entry, i64 {_MAP + i}" for i in words]
    hashes = [f"  %h0 = mul i64 %n0, {_ODD}"]
    for i in words[1:]:
        hashes += [f"  %x{i} = xor i64 %h{i - 1}, %n{i}", f"  %h{i} = mul i64 %x{i}, {_ODD}"]
    functions = (
        _FUNCTION.format(
            name=name,
            numbers="".join(f", i64 %n{i}" for i in words[1:]),
            hash="\n".join(hashes),
            hashed=f"%h{count}",
            shift=64 - (ENTRIES - 1).bit_length(),
            size=size,
            table=table,
            lock=_MAP + len(words),
            body="\n".join([*places, *body]),
        )
        for name, body in bodies.items()
    )
    return "\n".join(
        (
            f"@{table} = internal global [{ENTRIES} x [{size} x i64]] zeroinitializer, align 64\n",
            "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n",
            *functions,
        )
    )
