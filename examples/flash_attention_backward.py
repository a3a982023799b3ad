"""Flash attention, backward: the gradients of Q, K and V, without ever storing the scores.

A block owns a tile of keys and walks over tiles of queries. It computes their weights again, from the
largest score of each query and its sum of weights that the forward pass left (by sums of the same
order: of a large score the last bit counts), and from the gradient of the output the gradient of the
scores. Those of its keys and values it sums in registers; what it contributes to the queries' it adds
to memory, where other blocks do as well. Kernels before and after it prepare the sums, and scale and
round those of the queries. The program is `tvmtile.ops.programs.attention_backward`; here it is
compiled, and given what it needs.

T. Dao, FlashAttention-2, 2023, section 3.1.2.
"""

import torch
import torch.nn.functional as F
from common import check_or_measure, parse, tiles

import tvmtile
import tvmtile.language as T
from tvmtile.ops.programs import attention, attention_backward
from tvmtile.target import resolve


def reference(q, k, v, o, do, *_, causal):
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    F.scaled_dot_product_attention(*leaves, is_causal=causal).backward(do)
    return [leaf.grad for leaf in leaves]


def main(argv=None):
    args = parse(__doc__, argv, batch=1, heads=8, length=1024, dim=64)
    shape = args.batch, args.heads, args.length, args.dim
    q, k, v, do = (torch.randn(shape).bfloat16() for _ in range(4))
    work = torch.empty(shape[:3]), torch.empty(shape)
    sizes = tiles(args, block_M=32, block_N=16, stages=1, threads=128)
    for causal in (False, True):
        options = {"target": resolve(args.target), "causal": causal}
        program = attention(*shape, T.bfloat16, lse=True, **options)
        forward = tvmtile.compile(program, out_idx=[3, 4], target=args.target)
        program = attention_backward(*shape, T.bfloat16, configuration=sizes, **options)
        backward = tvmtile.compile(program, out_idx=[8, 9, 10], target=args.target)
        o, lse = forward(*(x.to(args.device) for x in (q, k, v)))
        inputs = (q, k, v, o, do, lse, *work)
        print("causal: " if causal else "full: ", end="")
        check_or_measure(
            args, backward, inputs, lambda *tensors: reference(*tensors, causal=causal)
        )


if __name__ == "__main__":
    main()
