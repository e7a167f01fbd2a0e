"""`ps_train experiment`: many jobs on a grid of settings, several times each, and a report of what they show.

| module | for |
|---|---|
| `grid` | the points that `--grid` names |
| `runs` | what each run is started with; whether a result is one of the same |
| `run` | the runs, one after the other, each a local cluster of its own; a result file for each that is done |
| `results` | what a run's reports say, as one record, and the files with a row for each |
| `machine` | what it ran on, and what else that had to do |
| `table`, `words` | figures over the seeds, and what they support, in words |
| `plots`, `page` | pictures, and all of it as one HTML file |
| `job` | all of this, in order |

Nothing here imports TensorFlow.
"""
