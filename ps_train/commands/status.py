"""`ps_train status`: how a running job is: its tasks, steps and rates, who is late; as a table, or with --json as JSON.

| what answers | exit status |
|---|---|
| at least one ps | 0 |
| none | 138 |

With --watch, and a page of --status_port, what was seen last counts; a Ctrl-C ends either.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from absl.flags import FlagValues

from ps_train.addresses import comparable
from ps_train.cluster import Cluster, TaskId
from ps_train.commands import print_json, print_text
from ps_train.config import TrainConfig
from ps_train.errors import EXIT_DONE, PeerLostError, UsageError
from ps_train.flags import cluster_flags
from ps_train.resolvers import ClusterFlags, check_choice, tf_config

if TYPE_CHECKING:
    from ps_train.sight import Watcher

_SOME_WORKER = "worker0.not.given:1"


class Watched(NamedTuple):
    """Whom to ask, and the cluster if all of it is known; `secs`: between looks, None: one; `page`: where to serve one."""

    ps: list[tuple[TaskId, str]]
    cluster: Cluster | None
    secs: float | None = None
    page: str | None = None


def run(values: FlagValues) -> int:
    """Looks for about a second and prints what it saw, or goes on doing so; gives the exit status."""
    watched = make_plan(values)
    from ps_train.sight import Watcher

    watcher = Watcher(watched.ps)
    try:
        with contextlib.ExitStack() as served:
            if watched.page is not None:
                url = served.enter_context(_page(watched))
                print(f"ps_train: status page: {url}", file=sys.stderr, flush=True)
            return (
                _watch(watched, watcher, values.json)
                if watched.secs
                else _look(watched, watcher, values.json)
            )
    finally:
        watcher.close()


def _look(watched: Watched, watcher: Watcher, is_json: bool) -> int:
    """One look; with a page, that is served until a Ctrl-C."""
    from ps_train import status, status_text

    seen = status.summarize(watcher.look(), watched.cluster)
    if is_json:
        print_json(status.as_dict(seen))
    else:
        print_text(status_text.as_text(seen))
    if not seen.is_answered:
        raise PeerLostError(status_text.why_unanswered(seen))
    if watched.page is not None:
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()
    return EXIT_DONE


def _watch(watched: Watched, watcher: Watcher, is_json: bool) -> int:
    from ps_train import status_watch

    assert watched.secs is not None
    with status_watch.make_pane(is_json=is_json) as pane:
        try:
            seen = status_watch.watch(watcher, watched.cluster, watched.secs, pane.show)
        except BrokenPipeError:  # the reader, such as head, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_DONE
    if not seen.is_answered:
        raise PeerLostError(status_watch.why_it_ended(seen, pane.last_step))
    return EXIT_DONE


@contextlib.contextmanager
def _page(watched: Watched) -> Iterator[str]:
    """Serves the page; gives its address."""
    from ps_train import status_page

    assert watched.page is not None
    try:
        page = status_page.Page(watched.page, status_page.Live(watched.ps, watched.cluster))
    except OSError as error:
        raise UsageError(
            f"--status_port={watched.page}: {status_page.why_not(watched.page, error)}."
        ) from None
    try:
        yield page.url
    finally:
        page.close()


def make_plan(values: FlagValues, env: Mapping[str, str] = os.environ) -> Watched:
    """Reads the flags that matter here and `env`; raises `UsageError` with what is wrong with them."""
    choice = values.cluster_resolver
    check_choice(choice)
    if choice in ("slurm", "mpi"):
        raise UsageError(
            f"--cluster_resolver={choice}: the command status is no task of the job that it asks. Leave it out, and give --ps_hosts=host:port as "
            "the tasks' logs name them."
        )
    problems = TrainConfig(status_port=values.status_port or None).problems()
    if problems:
        raise UsageError.from_problems(problems)
    flags = cluster_flags(values)
    theirs = tf_config.resolve(env, flags.colocate_ps).cluster if choice != "flags" else None
    ours = _from_flags(flags) if flags.has_hosts and choice != "tf_config" else None
    if ours is not None and theirs is not None and _ps_of(ours) != _ps_of(theirs):
        raise UsageError(
            f"--ps_hosts={flags.ps_hosts} and TF_CONFIG name different ps tasks. Remove one, or choose with "
            "--cluster_resolver=flags or --cluster_resolver=tf_config."
        )
    cluster = ours or theirs
    if cluster is None:
        raise UsageError(
            "The command status asks the ps tasks of a running job, and none is named. Add --ps_hosts=host:port,host:port, "
            "or set TF_CONFIG."
        )
    ps = [(task, cluster.address(task)) for task in cluster.ps_tasks]
    is_whole = theirs is not None or bool(flags.worker_hosts or flags.chief_host)
    return Watched(ps, (theirs or cluster) if is_whole else None, values.watch, values.status_port or None)


def _ps_of(cluster: Cluster) -> dict[TaskId, str]:
    """The ps tasks with their addresses, in one spelling."""
    return {task: comparable(cluster.address(task)) for task in cluster.ps_tasks}


def _from_flags(flags: ClusterFlags) -> Cluster:
    """The lists of hosts, of which those of the workers may be left out."""
    workers = flags.worker_hosts or (None if flags.chief_host else _SOME_WORKER)
    return Cluster.from_hosts(flags.ps_hosts, workers, flags.chief_host, flags.colocate_ps)
