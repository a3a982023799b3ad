"""Groups of threads and their regions."""

import tvm
from tvm import tirx
from tvm.script import tirx as TS

from tvmtile._tvm import mapped
from tvmtile.ir.kernels import Launch, with_kernels, with_launch_body
from tvmtile.ir.threads import Group, group_of_region, let_in, without_groups


@TS.prim_func
def kernel(A: TS.Buffer((256,), "float32")):
    for bx in TS.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
        for ty in TS.thread_binding(4, thread="threadIdx.y"):
            for tx in TS.thread_binding(64, thread="threadIdx.x"):
                A[ty * 64 + tx] = 1.0


def done_by(group):
    """The kernel with its body left to a group."""

    def rewrite(loop):
        launch = Launch(loop)
        return with_launch_body(loop, let_in(group, launch, launch.body))

    return with_kernels(kernel, rewrite)


def groups_in(func):
    found = []
    mapped(func.body, (tirx.AttrStmt, lambda node: found.append(group_of_region(node)) or node))
    return found


def test_a_region_survives_its_text():
    for group in (Group(0, 128), Group(128, 64), Group(32, 224)):
        func = done_by(group)
        assert groups_in(func) == [group]
        parsed = tvm.script.from_source(func.script())
        tvm.ir.assert_structural_equal(parsed, func)


def test_a_branch_lets_in_the_threads_of_a_group():
    @TS.prim_func
    def expected(A: TS.Buffer((256,), "float32")):
        for bx in TS.thread_binding(1, thread="blockIdx.x", annotations={"tvmtile.kernel": True}):
            for ty in TS.thread_binding(4, thread="threadIdx.y"):
                for tx in TS.thread_binding(64, thread="threadIdx.x"):
                    if ty * 64 + tx >= 128 and ty * 64 + tx < 192:
                        A[ty * 64 + tx] = 1.0

    func = done_by(Group(128, 64))
    plain = func.with_body(without_groups(func.body))
    tvm.ir.assert_structural_equal(plain, expected.with_attr("global_symbol", "kernel"))


def test_what_is_no_group_is_no_region():
    attribute = tirx.AttrStmt(0, "tvmtile.other", tirx.const(1, "int32"), tirx.Evaluate(0))
    assert group_of_region(attribute) is None
    assert group_of_region(attribute.body) is None
    assert without_groups(attribute).same_as(attribute)


def test_a_group_contains_groups():
    whole, half, other = Group(0, 256), Group(128, 128), Group(96, 64)
    assert all(group in whole for group in (whole, half, other))
    assert half in half
    assert not any(group in half for group in (whole, other))
    assert str(half) == "threads 128 to 255"
