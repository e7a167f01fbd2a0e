"""Steps with the hooks of the user's alone, for a session whose other hooks need not see each step.

    steps = HookedSteps(session, step, figures, hooks)
    steps.run(follow)              # the hooks' before_run, the step, follow(figures), the hooks' after_run

MonitoredSession asks all its hooks before and after each step and puts their fetches together anew, which takes longer than a small
step. A hook mostly wants the same each time: the calls for what was wanted are kept.
"""

import collections.abc
import copy
from typing import Any

from ps_train.compat import tf1
from ps_train.errors import ModelError

HIGHEST_OPTIONS = "trace_level", "timeout_in_ms", "inter_op_thread_pool"
MAX_KNOWN = 8  # calls that are kept: hooks want one thing at one step and another at the next


class HookedSteps:
    """The steps of one session.

    Args:
      session: raw session.
      step: op of a step.
      figures: dict of what else is fetched.
      hooks: list of `tf1.train.SessionRunHook`, in their order.
    """

    def __init__(self, session, step, figures, hooks):
        self._session, self._step, self._figures, self._hooks = session, step, figures, hooks
        self._args = tf1.train.SessionRunArgs(step)
        self._known: list[tuple[list[Any], Any]] = []

    def run(self, follow):
        """One step; `follow` is given the figures before the hooks are told."""
        context = tf1.train.SessionRunContext(self._args, self._session)
        asked = [hook.before_run(context) or tf1.train.SessionRunArgs(None) for hook in self._hooks]
        feeds, metadata = _all_feeds(asked), tf1.RunMetadata()
        given = [args.options for args in asked if args.options is not None]
        options = _joint_options(given)
        wanted = [args.fetches for args in asked]
        call = None if feeds or given else self._call_for(wanted)
        if call is not None:
            _, figures, found = call()
        else:
            _, figures, found = self._session.run(
                self._fetches(wanted), feed_dict=feeds, options=options, run_metadata=metadata
            )
        follow(figures)
        found = iter(found)
        for hook, fetches in zip(self._hooks, wanted, strict=True):
            results = None if fetches is None else next(found)
            hook.after_run(context, tf1.train.SessionRunValues(results, options, metadata))

    def _fetches(self, wanted):
        return [self._step, self._figures, [fetches for fetches in wanted if fetches is not None]]

    def _call_for(self, wanted):
        """A prepared call for what the hooks gave; None if they give ever new tensors."""
        for known, call in self._known:
            if _is_same(known, wanted):
                return call
        if len(self._known) >= MAX_KNOWN:
            return None
        kept = [_copied(fetches) for fetches in wanted]
        call = self._session.make_callable(self._fetches(kept))
        self._known.append((kept, call))
        return call


class FeedlessHook(tf1.train.SessionRunHook):
    """A hook of the user's in a job whose steps have several batches: it may fetch, but not feed.

    It is asked once a step, as in TensorFlow. What it feeds may be meant for each batch, as a rate, or be a batch itself, which
    would then be trained with several times. That cannot be told apart, so it is refused, and never given to some of the batches.

    Args:
      hook: `tf1.train.SessionRunHook`.
      num_batches: of a step.
    """

    def __init__(self, hook, num_batches):
        self._hook, self._num_batches = hook, num_batches
        self.begin, self.after_create_session = hook.begin, hook.after_create_session
        self.after_run, self.end = hook.after_run, hook.end

    def before_run(self, run_context):
        """The hook's; raises ModelError if it feeds."""
        args = self._hook.before_run(run_context)
        if args is not None and args.feed_dict:
            names = ", ".join(str(getattr(key, "name", key)) for key in args.feed_dict)
            raise feeds_refused(f"{type(self._hook).__name__} feeds {names}", self._num_batches)
        return args


def feeds_refused(what, num_batches):
    """The ModelError for a feed, or for the lack of one, in a step of several batches."""
    return ModelError(
        f"{what}, and a step of {num_batches} batches takes no feeds: hooks are asked once for all of them. Compute the value in "
        "the graph, as from the global step, or leave out --accumulate_steps or --local_steps."
    )


def _all_feeds(asked):
    feeds = {}
    for args in asked:
        for key, value in (args.feed_dict or {}).items():
            if key in feeds:
                raise RuntimeError(f"Two hooks feed {key}. Leave one of them out.")
            feeds[key] = value
    return feeds


def _joint_options(options):
    """What all ask for, as MonitoredSession joins it: the highest level of tracing, the longest time."""
    joint = tf1.RunOptions()
    for one in options:
        highest = {name: max(getattr(joint, name), getattr(one, name)) for name in HIGHEST_OPTIONS}
        joint.MergeFrom(one)
        for name, value in highest.items():
            setattr(joint, name, value)
    return joint


def _copied(fetches):
    """The same in containers of our own: a hook may change its own later on."""
    if isinstance(fetches, dict):
        copied = copy.copy(fetches)
        copied.update((key, _copied(value)) for key, value in fetches.items())
        return copied
    if isinstance(fetches, collections.abc.Mapping):
        return copy.copy(fetches)
    if isinstance(fetches, (list, tuple)):
        copies = [_copied(each) for each in fetches]
        return fetches._make(copies) if hasattr(fetches, "_make") else type(fetches)(copies)
    return fetches


def _is_same(known, wanted):
    """Whether fetches are of one structure, of the very same tensors and ops; hooks make new dicts of them each step."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        return known.keys() == wanted.keys() and all(_is_same(known[key], wanted[key]) for key in known)
    if isinstance(known, (list, tuple)) and type(known) is type(wanted):
        return len(known) == len(wanted) and all(map(_is_same, known, wanted))
    return known is wanted or (isinstance(known, str) and known == wanted)
