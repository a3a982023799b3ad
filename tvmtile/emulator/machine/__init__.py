"""The machine that emulated kernels run on: threads, memory, and what every access is checked against.

A front end (`tvmtile.emulator.metal`) turns a language's text into C++ and says by what words
the language calls things; the machine knows neither. Every thread of a block is a fiber. The compiler's
instrumentation calls the machine at each access to memory, and the front end's functions call it where
threads wait for each other (`include/machine/runtime.h`).
"""
