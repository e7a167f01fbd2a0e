"""A ps that holds nothing of the model and comes back as a new process: the model is as whole as before.

    guard.looks.append(VacantPsWatch(monitor, graph).look)       # on the chief

Nobody's session is lost with such a ps, as no step goes there. So nobody makes a new one, the declaration on the boards goes on
to name its old process, and whoever waits for one that names the new process, as a colocated worker that is started again, would
wait for ever. Where it stays away, the chief can save before it ends (`worker.judge`). A small model makes such ps tasks in a colocated job (`placement`).
"""

from ps_train.liveness import restarted_ps
from ps_train.logs import log
from ps_train.transport import task_of

PROBES = "ps_train/probe/"  # ops on each ps that hold nothing between two runs


class VacantPsWatch:
    """Declares the model valid for a new process of a ps that has no op of the graph.

    Args:
      monitor: the chief's.
      graph: that is trained; looked at when it is needed, as hooks add to it.
    """

    def __init__(self, monitor, graph):
        self._monitor, self._graph = monitor, graph

    def look(self):
        """Called twice a second."""
        record = self._monitor.view().record("model")
        back = restarted_ps(self._monitor)
        if not back or record.get("chief") != self._monitor.run_id or not self.is_vacant(back):
            return
        log.info("%s came back, and held nothing of the model", ", ".join(back))
        fields = {key: value for key, value in record.items() if key not in ("key", "beat")}
        self._monitor.publish("model", **{**fields, "ps_runs": record.get("ps_runs", {}) | back})

    def is_vacant(self, names):
        """Whether none of these ps tasks holds anything of the model."""
        return not set(names) & self._holders()

    def _holders(self):
        """Names of the ps tasks that have ops."""
        ops = (op for op in self._graph.get_operations() if not op.name.startswith(PROBES))
        tasks = {task_of(op.device) for op in ops}
        return {task.removeprefix("/job:").replace("/task:", ":") for task in tasks if task}
