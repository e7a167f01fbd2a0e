"""Gives each test `make_job`, ends what it started, and puts the ends of the tasks' logs into its failure."""

import pytest
from harness import Job


@pytest.fixture
def make_job(tmp_path, request):
    """Makes a harness.Job in the test's folder; its tasks end with the test. A module's IS_FRESH is its jobs' `is_fresh`."""
    jobs = request.node._ps_train_jobs = []

    def make(*args, **kwargs):
        jobs.append(Job(tmp_path, *args, **kwargs))
        jobs[-1].is_fresh |= getattr(request.module, "IS_FRESH", False)
        return jobs[-1]

    yield make
    for job in jobs:
        job.__exit__()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for job in getattr(item, "_ps_train_jobs", []):
            report.sections.append(("logs of the tasks", job.tails()))
    return report
