"""What TensorBoard shows of a directory: the values of each tag, without those that a later START has voided.

curves(train_dir)["loss"]                  # [(1, 2.3), (101, 0.4)]
files(train_dir)                           # the event files, the oldest first
"""

import contextlib
import pathlib


def files(directory):
    """Event files of one directory, in the order of their making."""
    found = pathlib.Path(directory).glob("events.out.tfevents.*")
    return sorted(found, key=lambda path: (path.stat().st_ctime_ns, path.name))


def curves(directory, is_growing=False):
    """Tag -> list of (step, number or HistogramProto); `is_growing`: the last event may be there in part."""
    from ps_train.compat import tf, tf1

    found = {}
    for path in files(directory):
        with contextlib.suppress(*([tf.errors.DataLossError] if is_growing else [])):
            for event in tf1.train.summary_iterator(str(path)):
                _take_in(event, found, tf1.SessionLog.START)
    return found


def _take_in(event, found, start):
    if event.HasField("session_log") and event.session_log.status == start:
        for points in found.values():
            points[:] = [point for point in points if point[0] < event.step]
    for value in event.summary.value if event.HasField("summary") else ():
        shown = value.histo if value.HasField("histo") else value.simple_value
        found.setdefault(value.tag, []).append((event.step, shown))


def counts(histograms):
    """Upper edge less a half -> count, over all histograms of a curve."""
    found = {}
    for _, histogram in histograms:
        for limit, count in zip(histogram.bucket_limit, histogram.bucket, strict=True):
            if count:
                found[int(limit - 0.5)] = found.get(int(limit - 0.5), 0) + int(count)
    return found
