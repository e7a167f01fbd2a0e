#!/bin/sh
#SBATCH --job-name=ps_train
#SBATCH --nodes=2
#SBATCH --ntasks=3              # one ps, as --num_ps says below, and two workers
#SBATCH --time=01:00:00
#SBATCH --signal=TERM@120       # two minutes before its time is up the job ends in order: the chief saves
#
#   sbatch examples/slurm_job.sh --update=sync --train_steps=1000
#   sbatch --nodes=8 --ntasks=16 --cpus-per-task=4 examples/slurm_job.sh --num_ps=4 --model=mine.py
#
# Where --train_dir is, all nodes must see it, and the same job submitted again goes on from the newest checkpoint there; it
# is worth that after status 138. --kill-on-bad-exit=0: a job that can go on without a lost worker does, and every other
# ends by itself within --peer_timeout_secs.
exec srun --kill-on-bad-exit=0 --wait=0 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
  python -m ps_train --num_ps=1 --train_dir=runs/slurm "$@"
