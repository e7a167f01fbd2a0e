"""A cluster of TensorFlow servers in this process, with a thread for each worker: what the tests of `updates` run on.

servers = lend_servers(num_ps=2, num_workers=3)             # for this test; as good as new
job = Job(servers, "name of the test", build, quorum=2)     # build(worker's number) in each worker's graph
job.run_workers(lambda k, session, optimizer: ...)          # the chief's update loop serves them; bounded
"""

import threading
import traceback

from ports import free_ports

from ps_train import placement, task_context
from ps_train.cluster import Cluster
from ps_train.compat import tf, tf1
from ps_train.updates.rounds import MemberHook, UpdateLoop
from ps_train.updates.sync import SyncReplicasOptimizer

DEADLINE_SECS = 60


def free_addresses(count):
    """Distinct addresses on this host on which nothing listens."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


class Servers:
    """Running servers. They live as long as the process, each with some 260 threads: see `lend_servers`."""

    def __init__(self, num_ps, num_workers):
        addresses = free_addresses(num_ps + num_workers)
        self.cluster = Cluster.from_hosts(addresses[:num_ps], addresses[num_ps:])
        spec = tf.train.ClusterSpec(self.cluster.as_dict())
        self._servers = {
            task: tf1.train.Server(spec, job_name=task.job, task_index=task.index)
            for task in self.cluster.tasks
        }

    def target(self, task):
        return self._servers[task].target

    def reset(self):
        """Ends all sessions and drops what they have made on the servers, but for containers with a name."""
        for server in self._servers.values():
            tf1.Session.reset(server.target)


_idle, _lent = {}, []


def lend_servers(num_ps, num_workers):
    """Servers for the test that runs, which an earlier one may have had."""
    size = num_ps, num_workers
    idle = _idle.setdefault(size, [])
    servers = idle.pop() if idle else Servers(num_ps, num_workers)
    _lent.append((size, servers))
    return servers


def take_servers_back():
    """At the end of each test: by conftest.py."""
    while _lent:
        size, servers = _lent.pop()
        servers.reset()
        _idle[size].append(servers)


class Job:
    """One graph and session for each worker, on resources of its own on the servers.

    Args:
      servers: Servers.
      name: tells this job's variables, accumulators and queues apart from those of other jobs.
      build: called with the worker's number in each worker's graph; returns (optimizers or one, whatever else).
    """

    def __init__(self, servers, name, build):
        self.servers, self.optimizers, self.built, self.sessions, self.failures = servers, [], [], [], []
        before = task_context.current_or_none()
        try:
            for task in servers.cluster.training_tasks:
                context = task_context.TaskContext(task, servers.cluster, "sync")
                task_context.set_current(context)
                graph = tf1.Graph()
                with graph.as_default(), graph.container(name), placement.scope(context):
                    tf1.train.get_or_create_global_step()
                    optimizers, built = build(context.replica)
                    local_init = tf1.local_variables_initializer()
                    if isinstance(optimizers, SyncReplicasOptimizer):
                        optimizers = [optimizers]
                    if context.is_chief:
                        init = tf1.global_variables_initializer()
                        self._token_counts = [queue.size() for queue in optimizers[0].ledger._tokens]
                self.optimizers.append(optimizers)
                self.built.append(built)
                self.sessions.append(self._session(task, graph))
                if context.is_chief:
                    self.sessions[0].run(init)
                self.sessions[-1].run(local_init)
        finally:
            task_context._current[:] = [before] if before else []
        for optimizer in self.optimizers[0]:
            optimizer.reset(self.sessions[0])

    def _session(self, task, graph):
        config = tf1.ConfigProto(device_filters=["/job:ps", f"/job:{task.job}/task:{task.index}"])
        return tf1.Session(self.servers.target(task), graph=graph, config=config)

    def join(self, k, coordinator=None):
        """Worker k joins the rounds, as its session's hook does; the chief's starts the update loops if there are some."""
        for optimizer in self.optimizers[k]:
            MemberHook(optimizer).after_create_session(self.sessions[k], coordinator)

    def run_workers(self, work, numbers=None):
        """Calls `work(k, session)` in a thread for each worker that has joined; serves them; raises what they raise."""
        numbers = range(len(self.sessions)) if numbers is None else numbers
        chief = self.servers.cluster.chief_task
        coordinator = tf1.train.Coordinator()
        loops = [
            UpdateLoop(
                o, lambda: self._session(chief, self.sessions[0].graph), lambda: None, self.failures.append
            )
            for o in self.optimizers[0]
        ]
        failures = []

        def run(k):
            try:
                self.join(k, coordinator)
                work(k, self.sessions[k])
                for optimizer in self.optimizers[k]:
                    MemberHook(optimizer).end(self.sessions[k])
            except BaseException:
                failures.append(traceback.format_exc())

        threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in numbers]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(DEADLINE_SECS)
            states = [o.snapshot(self.sessions[0]) for o in self.optimizers[0]]
            assert not failures, "\n".join(failures)
            assert not any(t.is_alive() for t in threads), f"stuck after {DEADLINE_SECS} s: {states}"
        finally:
            for loop in loops:
                loop.end(self.sessions[0])
                loop._optimizer.update_loop = None
        coordinator.raise_requested_exception()

    def tokens_left(self):
        """How many tokens wait for each worker, of the first optimizer."""
        return self.sessions[0].run(self._token_counts)

    def close(self):
        for session in self.sessions:
            session.close()
