"""A job as Kubernetes objects: plain ones, or a TFJob of Kubeflow's training operator.

    make_objects(Plan(kind="plain", name="mine", image="registry/mine:1", num_ps=1, num_workers=2, config=TrainConfig()))
    # a NetworkPolicy, a headless Service, the Jobs mine-ps and mine-worker

Plain:
1. Both jobs are Indexed Jobs. Their pods get the host names NAME-worker-0 and so on, which the headless Service makes known
   before the pods are ready. A StatefulSet would do that for the ps, too, but it starts a ps again that has ended with 0
   because the job is over, for ever; and it has no word for a status that must not be tried again.
2. A pod that ends with 138, or by a signal, is replaced and counts: a Job may replace 10 for each of its tasks, whichever
   they are. One that Kubernetes moves elsewhere does not count. One that ends with 1, or cannot start, ends its Job at once;
   the tasks of the other Job end with 1 by themselves.
3. The arguments are those of `command_lines.of_a_task`; the index comes from the pod's own JOB_COMPLETION_INDEX.

TFJob: the operator makes the Services and TF_CONFIG. `ExitCode` restarts 128-255 without end and gives up on 1-127, the job
has succeeded when all workers have, and what runs then, or when it has failed, is ended.

In both a NetworkPolicy lets only the job's own pods reach the port, as TensorFlow's server authenticates nobody. It has an
effect where the cluster's network plugin knows policies.
"""

from ps_train.manifest.objects import make_objects
from ps_train.manifest.plan import KINDS, Plan, problems
from ps_train.manifest.writing import as_yaml, command_line

__all__ = ["KINDS", "Plan", "as_yaml", "command_line", "make_objects", "problems"]
