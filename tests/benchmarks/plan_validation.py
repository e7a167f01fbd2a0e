"""What `ps_train plan` predicts against what was measured: here, and by others who published their setups.

    python tests/benchmarks/plan_validation.py

Nothing is fitted: each case has its setup's own figures, and the model has no constants but the part of an Ethernet frame that is
payload. A case names where its figures are from, and what is not known of it. Cases that could not be simulated, for want of a link's
rate or a model's size, are listed with the reason.

Ours: `scaling.py`, whose steps are sleeps of 0.5 s between the pull of 1 MB and the push of as much. `tc tbf` slows down what leaves
a host, not what comes in, and lets 256 KiB pass at once after a rest (`tests/cluster/namespaces.py`). All of it runs on two
processors, which limit when the 20 processes of 16 synchronous workers and 4 ps have something to do at the same moment: with 0.5 s
and 1 MB 16.20 steps/s at 100 Mbit/s and 25.50 at 1000, 0.88 and 0.86 of what is predicted for hosts with processors of their own. Those
two clusters, and their worker alone, were measured with steps four times as long and large, whose ratios of sleep to bytes are the same.

ps_train joins what is small, so that here a step's parts follow one another. TensorFlow's own programs let each tensor travel by
itself, while others are computed: of published figures both are predicted, without any overlap and with all there can be.

Published: a worker of one host with 8 GPUs is one step of 8 batches, whose length is that of the published row with one host. Bytes
are those of the parameters (https://keras.io/api/applications: InceptionV3 23.9 million, ResNet50 25.6, ResNet152 60.4), in float32.
"""

import dataclasses
from typing import NamedTuple

from ps_train.plan.inputs import PAYLOAD, rate_of
from ps_train.plan.setup import Setup
from ps_train.plan.simulate import simulate

SLEEP_SECS, MODEL_BYTES, BUCKET_BYTES = 0.5, 1e6, 256 * 1024
LARGE = 4  # times both: scaling.py --sleep_secs=2 --kb=4000
# (update, ps, workers, Mbit/s, steps/s of all workers, how many times as large), printed by scaling.py.
OURS = (
    ("async", 1, 1, 100, 1.59, 1), ("async", 1, 4, 100, 6.35, 1), ("async", 1, 16, 100, 11.66, 1),
    ("async", 4, 1, 100, 1.76, 1), ("async", 4, 4, 100, 7.02, 1), ("async", 4, 16, 100, 28.04, 1),
    ("sync", 1, 1, 100, 1.58, 1), ("sync", 1, 4, 100, 4.53, 1), ("sync", 1, 16, 100, 8.32, 1),
    ("sync", 4, 1, 100, 1.74, 1), ("sync", 4, 4, 100, 6.23, 1),
    ("sync", 4, 1, 100, 0.42, LARGE), ("sync", 4, 16, 100, 4.23, LARGE),
    ("sync", 4, 1, 1000, 0.49, LARGE), ("sync", 4, 16, 1000, 6.80, LARGE),
)  # fmt: skip

MILLIONS = {"InceptionV3": 23.9, "ResNet-50": 25.6, "ResNet-152": 60.4}  # of parameters
# TensorFlow's tensorflow/docs_src/performance/benchmarks.md, "Amazon EC2 Distributed", synthetic data, May 2017.
GOOGLE = "benchmarks.md of TensorFlow"
# Table of p2.8xlarge, synthetic data, in github.com/e-bug/distributed-tensorflow-benchmarks, report/source/benchmarks.tex.
REPORT = "Bugliarello 2017, Distributed TensorFlow: a performance evaluation"
AMAZON_MBIT = 10_000  # p2.8xlarge, by Amazon's table of instances
# (model, batch of a GPU, images/s of one GPU, {hosts of 8 GPUs: (images/s, ps tasks)}); the ps tasks run on the same hosts.
ON_AMAZON = (
    ("InceptionV3", 64, 29.7, {1: (229, 1), 2: (459, 2), 4: (902, 4), 8: (1783, 6)}, GOOGLE),
    ("ResNet-50", 64, 52.4, {1: (378, 1), 2: (751, 2), 4: (1388, 4), 8: (2744, 8)}, GOOGLE),
    ("ResNet-152", 32, 19.4, {1: (146, 1), 2: (291, 2), 4: (565, 4), 8: (981, 4)}, GOOGLE),
    ("InceptionV3", 32, 29.2, {1: (219, 1), 2: (427, 2), 4: (820, 4), 8: (1608, 8)}, GOOGLE),
    ("ResNet-50", 32, 48.4, {1: (333, 1), 2: (667, 2), 4: (1180, 4), 8: (2315, 4)}, GOOGLE),
    (
        "InceptionV3", 64, 30.55,
        {1: (230.75, 1), 2: (448.57, 1), 4: (863.72, 3), 8: (1731.31, 8), 16: (3333.20, 16)}, REPORT,
    ),
)  # fmt: skip
# A ps's plateau: InceptionV3, batches of 32, the forward pass alone on processors, 1 ps; {workers: images/s}. The network is not
# told. What TensorFlow's gRPC of the time carried to one task is: 161.63 MB/s, on loopback or at 40 Gbit/s.
PLATEAU = {1: 22.30, 2: 45.05, 4: 46.61, 8: 48.0}
PLATEAU_SOURCE = "tensorflow/benchmarks issue 84; the rate: tensorflow/tensorflow issue 4498"
GRPC_BYTES_PER_SEC = 161.63e6

NOT_SIMULATED = (
    ("50 GPUs, Inception: 32x; 8 GPUs, machine translation: 6x", "neither links nor sizes nor step times are published"),
    (
        "p2.xlarge, InceptionV3, 1 to 128 hosts (Bugliarello 2017): 30.55 to 1077.59 images/s",
        "the link is called 'High', with no figure; what holds 128 hosts is something else: each sends and receives 25 MB/s",
    ),
    (
        "Piz Daint, InceptionV3, 1 to 128 hosts (Bugliarello 2017): 138.23 to 9219.70 images/s",
        "what TensorFlow's gRPC gets of the Aries network is not told",
    ),
)  # fmt: skip


class Case(NamedTuple):
    """A figure that was measured, and what is predicted in its place.

    `at_best`: with overlap, if that is to be asked; `limit`: what else is known to hold it.
    """

    name: str
    measured: float
    predicted: float
    source: str
    limit: str = ""
    at_best: float | None = None

    @property
    def error(self):
        """Of the prediction, over what was measured."""
        return self.predicted / self.measured - 1

    @property
    def error_at_best(self):
        """The same with overlap."""
        return (self.at_best or self.predicted) / self.measured - 1


def our_setup(update, num_ps, num_workers, mbit, times):
    """The hosts of scaling.py."""
    rate, size = rate_of(mbit), times * MODEL_BYTES
    return Setup(
        times * SLEEP_SECS, size, size, num_ps=num_ps, num_workers=num_workers, is_sync=update == "sync",
        ps_out_rate=rate, worker_out_rate=rate, burst_bytes=BUCKET_BYTES * PAYLOAD,
    )  # fmt: skip


def ours():
    """Steps/s of all workers."""
    for update, num_ps, num_workers, mbit, measured, times in OURS:
        rate = simulate(our_setup(update, num_ps, num_workers, mbit, times)).steps_per_sec
        name = f"{update}, {num_ps} ps, {num_workers} workers, {mbit} Mbit/s, {times * SLEEP_SECS} s"
        yield Case(name, measured, rate, "scaling.py")


def our_efficiencies():
    """A worker of 16 over a worker alone, as the README has it."""
    alone = {
        (update, ps, mbit, times): rate for update, ps, workers, mbit, rate, times in OURS if workers == 1
    }
    for update, num_ps, num_workers, mbit, measured, times in OURS:
        if num_workers != 16:
            continue
        rates = [simulate(our_setup(update, num_ps, count, mbit, times)).steps_per_sec for count in (16, 1)]
        yield Case(
            f"{update}, {num_ps} ps, {mbit} Mbit/s: 16 workers", measured / 16 / alone[update, num_ps, mbit, times],
            rates[0] / 16 / rates[1], "scaling.py",
        )  # fmt: skip


def amazon_setup(model, step_secs, hosts, num_ps):
    """Synchronous workers of 8 GPUs; ps tasks on all of their hosts are colocated ones, on some of them hosts of their own."""
    size, rate = 4e6 * MILLIONS[model], rate_of(AMAZON_MBIT)
    return Setup(
        step_secs, size, size, num_workers=hosts, num_ps=num_ps, is_sync=True, is_colocated=num_ps == hosts,
        ps_out_rate=rate, ps_in_rate=rate, worker_out_rate=rate, worker_in_rate=rate,
    )  # fmt: skip


def on_amazon():
    """Speed-up over one GPU, of the hosts beyond the first."""
    for model, batch, one_gpu, rows, source in ON_AMAZON:
        step_secs = 8 * batch / rows[1][0]
        for hosts, (measured, num_ps) in rows.items():
            if hosts == 1:
                continue
            rate, at_best = (
                8 * batch * each for each in rates(amazon_setup(model, step_secs, hosts, num_ps))
            )
            name = f"{model}, batches of {batch}, {8 * hosts} GPUs, {num_ps} ps"
            yield Case(name, measured / one_gpu, rate / one_gpu, source, at_best=at_best / one_gpu)


def plateau():
    """Images/s; what one worker computes is its step without the pull at the rate of gRPC, or with overlap all of its step."""
    size, step_secs = 4e6 * MILLIONS["InceptionV3"], 32 / PLATEAU[1]
    for num_workers, measured in PLATEAU.items():
        setup = Setup(
            step_secs - size / GRPC_BYTES_PER_SEC,
            size,
            num_workers=num_workers,
            ps_out_rate=GRPC_BYTES_PER_SEC,
        )
        rate = 32 * simulate(setup).steps_per_sec
        ahead = dataclasses.replace(
            setup, compute_secs=step_secs, prefetch=True
        )  # the pull beside all of the arithmetic
        limit = "gives the compute time" if num_workers == 1 else "the network is not told"
        at_best = 32 * simulate(ahead).steps_per_sec
        yield Case(f"one ps, {num_workers} workers", measured, rate, PLATEAU_SOURCE, limit, at_best)


def rates(setup):
    """Steps/s without overlap, and with it."""
    return [simulate(dataclasses.replace(setup, overlap=overlap)).steps_per_sec for overlap in (False, True)]


def main():
    """Prints a table for each source of figures."""
    for title, cases in (
        ("Ours: steps/s of all workers", ours()),
        ("Ours: efficiency", our_efficiencies()),
        ("Published: speed-up over one GPU", on_amazon()),
        ("Published: images/s of one ps, forward pass alone", plateau()),
    ):
        print(
            f"\n| {title} | measured | predicted | error | with overlap | error | from |\n|---|---|---|---|---|---|---|"
        )
        for case in cases:
            note = f"; {case.limit}" if case.limit else ""
            best = "" if case.at_best is None else f"{case.at_best:.2f} | {100 * case.error_at_best:+.0f}%"
            print(
                f"| {case.name} | {case.measured:.2f} | {case.predicted:.2f} | {100 * case.error:+.0f}% | {best or ' | '} "
                f"| {case.source}{note} |"
            )
    print("\n| Not simulated | because |\n|---|---|")
    for name, reason in NOT_SIMULATED:
        print(f"| {name} | {reason} |")


if __name__ == "__main__":
    main()
