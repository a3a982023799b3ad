"""TIR as tile programs use it; nothing here knows an operator.

`kernels` recognises `T.Kernel`, `threads` and `scopes` what its threads and tiles are, `operands` and
`operators` the protocol of tile operators, `asynchronous` and `barriers` how threads wait. `rewriting`
and `scoped_rewriter` change statements, `passes` makes passes of such changes, and `spans` keeps the
user's lines.
"""
