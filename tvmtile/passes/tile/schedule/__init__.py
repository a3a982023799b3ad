"""Schedules of pipelined loops: what runs ahead of what, in which role, on how many buffer copies.

A pipelined loop is cut into units, the statements of its body (`body`). A `Schedule` (`schedule`)
says in which order each of its roles goes through them: a role has steps, of which each belongs to
an iteration, so many ahead of the loop's or behind it. Between roles, and where copies complete by
themselves, rings (`rings`) of buffer copies say when a slot is full and when it is free. `verify`
proves that no slot is read too early or filled too early, `emit` writes out what a role does:
prologue, steady state, epilogue.

`schedule_pipelines` is the pass. With one role (`one_role`) the threads of a block copy ahead and
compute: a plan gives each unit a stage and a place in the order (`plan`). Loops of a kernel may be
split between two roles (`two_roles`): a producer, warps of their own that copy tiles ahead
(`producer`), and consumers, which use them (`consumers`). `split_loops` says which loops can be split
and how, `copies` what a producer can do, `roles` which rings and counters loops get,
`iteration_space` which iterations they have, `persistence` how blocks follow each other in a block,
`resources` what memory and registers there are.
"""
