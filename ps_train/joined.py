"""A worker that trains nothing itself: its devices are for the chief's graph, as in in-graph replication.

    server = ps_train.Server(cluster, job_name="worker", task_index=1)
    server.join()                           # returns when the job is over

1. It waits for the chief's session, for `startup_timeout_secs`. The chief's graph has ops on this task's devices, and so its session
   cannot be made before this server is there.
2. It serves. Nobody waits for it at the end, as it has nothing to save.
3. The chief ends the job: it leaves, and the ps tasks end after it.
4. A chief or ps that is lost, or a task that failed for good, ends it as any other worker (`worker.judge`). If this task is lost, the
   chief makes a new session as soon as it is back, or ends with 138 after `peer_timeout_secs`.
"""

import time

from ps_train.cluster import SERVING, UP
from ps_train.errors import UsageError
from ps_train.liveness import wait_until
from ps_train.logs import log

POLL_SECS = 0.2


def run(runtime, sleep=time.sleep):
    """Serves until the job is over.

    Args:
      runtime: session.TaskRuntime, its monitor and guard running.
      sleep: for tests.

    Raises:
      UsageError: this is the chief, without which there is no job.
      PsTrainError: how it ended, if not with the job.
    """
    context, monitor = runtime.context, runtime.monitor
    chief = context.cluster.chief_task
    if context.is_chief:
        raise UsageError(
            f"{context.task} is the chief of this cluster and called join(): nobody would train. Expected the chief to make the "
            "MonitoredTrainingSession, and join() on ps tasks and on workers that only lend it their devices."
        )

    def is_over():
        return monitor.view().record("job").get("is_over", False)

    def has_begun():
        if monitor.refusal is not None:
            raise monitor.refusal
        return is_over() or monitor.view().record(chief).get("state") in UP

    wait_until(
        has_begun,
        lambda: f"{chief} at {context.cluster.address(chief)} to make its session",
        runtime.timeouts.startup_timeout_secs,
        runtime.guard,
        sleep=sleep,
        advice="Start it, check its address and the network between, or give it longer by startup_timeout_secs.",
    )
    monitor.post(state=SERVING)
    log.info("%s has its session: serving until the job is over", chief)
    while not is_over():
        runtime.guard.check()
        sleep(POLL_SECS)
    runtime.report.reason = f"the job is over: {monitor.view().record('job').get('reason', '')}"
