"""One trace of a window of steps of all tasks of a cluster: what `--trace_steps` writes, and the command `trace` reads.

    part = Part("worker:1", "worker:1", runs)             # what a worker has traced, by the clocks of the hosts (`parts`)
    text, num_cut = pack(part, max_bytes)                 # for the boards of the ps tasks; the chief: unpack(text)
    merged = merge(parts, "worker:0")                     # on one clock, messages paired with who sent them (`merged`)
    write(path, merged, facts)                            # Chrome's format, for Perfetto (`chrome`)
    summarize(read(path))                                 # a table, and each step's critical path (`summary`, `critical`)

There is no TensorFlow in it. Times are whole nanoseconds.
"""
