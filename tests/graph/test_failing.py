"""A step that fails on its worker ends, whatever the ps tasks wait for."""

import threading

import numpy as np
import pytest
from in_process import DEADLINE_SECS, lend_servers
from stepping import Run, build

from ps_train.compat import tf, tf1
from ps_train.model import ModelSpec

pytestmark = pytest.mark.graph


def failing(features, labels):
    """Its one variable is on ps:1, the global step on ps:0."""
    w = tf1.get_variable("w", initializer=np.float32([-3e38]))
    return ModelSpec(loss=tf.reduce_sum(w), optimizer=tf1.train.GradientDescentOptimizer(3e38))


def test_steps_that_fail_again_and_again():
    """Without the edge one of the first 14 to 57 did not end."""
    servers, errors = lend_servers(num_ps=2, num_workers=1), []
    run = Run(servers, build(servers, failing, local_steps=2))

    def work():
        for _ in range(150):
            with pytest.raises(tf.errors.InvalidArgumentError, match="ps_train found") as error:
                run.local_rounds(1, 1)
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECS)
    assert len(errors) == 150, f"stuck after {len(errors)} failures"


def test_only_a_ps_that_hears_nothing_gets_an_edge():
    def edges(num_ps):
        servers = lend_servers(num_ps=num_ps, num_workers=1)
        ops, _, _ = build(servers, failing)
        begun = [op for op in ops.graph.get_operations() if op.type == "Timestamp"]
        return [op.device.split("/device")[0] for one in begun for op in one._control_outputs]

    assert edges(1) == []
    assert edges(2) == ["/job:ps/task:0"]
