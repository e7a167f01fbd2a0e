"""What a pull and a push cost by themselves: the floor under a step of training with parameter servers.

    python tests/benchmarks/wire.py                       # 2.7 MB, a step's worth of a 784-512-512-10 net
    python tests/benchmarks/wire.py --kb=86000 --steps=20

A ps and a worker of TensorFlow's, on loopback, without any of ps_train's graph: the worker pulls one variable of so many kB,
pushes a tensor of that size, does both at once with an update by gradient descent; beside it, the same bytes through a bare TCP
socket. For each: time of a step, and processor time, user's + system's, of both processes: median (range) over the repeats, which
take turns. `glibc` is the allocator as it comes, `kept` with freed memory kept (`ps_train.allocator`, what tasks have by default).
Where the processors are full, a step cannot take less processor time than its arithmetic and these.
"""

import argparse
import multiprocessing
import pathlib
import resource
import socket
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cluster"))
from harness import free_ports
from standings import spread

WARM_STEPS = 20
CHUNK = 1 << 20


def cpu_secs():
    """(user's, system's) processor time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime


def serve(pipe, addresses, keeps):
    """The ps."""
    tf, spec = start(addresses, keeps)
    _server = tf.compat.v1.train.Server(spec, job_name="ps", task_index=0)
    answer(pipe)


def start(addresses, keeps):
    """(tensorflow, the cluster)."""
    from ps_train import allocator
    from ps_train.compat import tf

    if keeps:
        allocator.keep_freed_memory()
    ps, worker = addresses
    return tf, tf.train.ClusterSpec({"ps": [ps], "worker": [worker]})


def sink(pipe, port, size):
    """The other end of the bare socket: takes `size` bytes and answers with one, again and again."""
    with socket.create_server(("127.0.0.1", port)) as server:
        pipe.send(None)
        taker, _ = server.accept()
    threading.Thread(target=take, args=(taker, size), daemon=True).start()
    answer(pipe)


def take(taker, size):
    """Receives till the other end is closed."""
    buffer, taken = memoryview(bytearray(size)), 0
    while count := taker.recv_into(buffer[taken:], min(CHUNK, size - taken)):
        taken = (taken + count) % size
        if not taken:
            taker.send(b"k")


def answer(pipe):
    """Answers each message with this process's processor time so far."""
    while True:
        pipe.recv()
        pipe.send(cpu_secs())


def calls(addresses, keeps, num_floats):
    """name -> a function that makes one step."""
    tf, spec = start(addresses, keeps)
    tf1 = tf.compat.v1
    worker = tf1.train.Server(spec, job_name="worker", task_index=0)
    with tf.device("/job:ps/task:0"):
        variable = tf1.get_variable("v", [num_floats], use_resource=True, initializer=tf1.zeros_initializer())
        value = variable.read_value()
    with tf.device("/job:worker/task:0"):
        own = tf1.get_variable("own", [num_floats], use_resource=True, initializer=tf1.ones_initializer())
        gradient, pulled = own.read_value(), tf.identity(value)[:1]
    with tf.device("/job:ps/task:0"):
        pushed = tf.identity(gradient)[:1]
        update = tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1e-3, delta=gradient)
    session = tf1.Session(worker.target)
    session.run(tf1.global_variables_initializer())
    ops = {"pull": pulled.op, "push": pushed.op, "pull, push and update": tf.group(pulled, update)}
    return {name: session.make_callable(op) for name, op in ops.items()}


def sending(port, size):
    """A function that sends so many bytes to the sink, and waits for its answer."""
    sender, data = socket.create_connection(("127.0.0.1", port)), bytes(size)

    def send():
        sender.sendall(data)
        sender.recv(1)

    return send


def measure(pipe, call, steps):
    """(seconds, user's and system's processor seconds of both processes) of a step."""
    for _ in range(WARM_STEPS):
        call()

    def used():
        pipe.send(None)
        return [mine + its for mine, its in zip(cpu_secs(), pipe.recv(), strict=True)]

    before, at = used(), time.monotonic()
    for _ in range(steps):
        call()
    secs = time.monotonic() - at
    return (secs / steps, *((after - b) / steps for after, b in zip(used(), before, strict=True)))


def contestant(name, pipe, size, steps):
    """A process of its own for one way; sends (what, measured) for each of its kinds of steps, then None."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    ports = free_ports(2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    target, args = (
        (sink, (its, ports[0], size)) if name == "tcp" else (serve, (its, addresses, name == "kept"))
    )
    peer = context.Process(target=target, args=args)
    peer.start()
    its.close()  # so that the end of a peer is seen
    try:
        if name == "tcp":
            mine.recv()
            found = {"push": sending(ports[0], size)}
        else:
            found = calls(addresses, name == "kept", size // 4)
        for kind, call in found.items():
            pipe.send((kind, measure(mine, call, steps)))
        pipe.send(None)
    finally:
        peer.kill()
        peer.join()


def main():
    """Runs all in turn and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kb", type=int, default=2680)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found = {}
    for _ in range(args.repeats):
        for name in ("glibc", "kept", "tcp"):
            mine, its = context.Pipe()
            process = context.Process(target=contestant, args=(name, its, args.kb * 1000, args.steps))
            process.start()
            its.close()
            while (message := mine.recv()) is not None:
                kind, measured = message
                found.setdefault((name, kind), []).append(measured)
            process.join()
    print(f"{args.kb} kB, {args.steps} steps, {args.repeats} repeats; ms of a step, median (range)\n")
    print("| | | time | processors, user's | system's | both |\n|---|---|---|---|---|---|")
    for (name, kind), rows in found.items():
        columns = [*zip(*rows, strict=True), [user + system for _, user, system in rows]]
        cells = [spread([secs * 1e3 for secs in column]) for column in columns]
        print(f"| {name} | {kind} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
