"""Passes for CPUs: threads become loops, nests loops that LLVM vectorises, the grid one parallel loop.

schedule: kernels that name threads become loops over the threads, cut at their barriers
(`serialize_threads`, by `loop_fission`); sums stay in the tensor that they are written to
(`accumulate_in_place`), and begin with the first product (`fold_clear_into_first_gemm`); indices are
checked where a kernel asks for it (`insert_index_checks`).
distribute: serial loops in nests move out (`interchange_loops`), and nests become loops
(`lower_parallel`).
launch: blocks are iterations of a parallel loop (`launch_blocks`), whose body is a function where a
kernel would have it twice (`outline_blocks`).
"""
