"""Steps with the hooks of the user's alone, for a session whose other hooks need not see each step.

    steps = HookedSteps(session, step, figures, hooks)
    steps.run(follow)              # the hooks' before_run, the step, follow(figures), the hooks' after_run

MonitoredSession asks all its hooks before and after each step and puts their fetches together anew, which takes longer than a small
step. A hook mostly wants the same each time: the calls for what was wanted are kept.
"""

from typing import Any

from ps_train.compat import tf1

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
        call = self._session.make_callable(self._fetches(wanted))
        self._known.append((wanted, call))
        return call


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


def _is_same(known, wanted):
    """Whether fetches are of one structure, of the very same tensors and ops; hooks make new dicts of them each step."""
    if isinstance(known, dict) and isinstance(wanted, dict):
        return known.keys() == wanted.keys() and all(_is_same(known[key], wanted[key]) for key in known)
    if isinstance(known, (list, tuple)) and type(known) is type(wanted):
        return len(known) == len(wanted) and all(map(_is_same, known, wanted))
    return known is wanted or (isinstance(known, str) and known == wanted)
