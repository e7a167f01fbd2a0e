#!/bin/sh
# One ps and two workers by Open MPI's mpirun, on this host; on others with a list of them, and with mpi4py, through which the
# ranks tell each other where they are:
#
#   sh examples/mpi_job.sh --update=sync --train_steps=1000
#   MPIRUN_FLAGS='-np 8 --host host0:4,host1:4' sh examples/mpi_job.sh --num_ps=2 --model=mine.py
#
# Open MPI refuses more ranks than cores without --oversubscribe, and root without OMPI_ALLOW_RUN_AS_ROOT=1 and
# OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1. mpirun ends all ranks when one has failed. Open MPI then gives them one second, which is too short to save a checkpoint:
# hence sigkill_timeout. It binds ranks to cores, too, while TensorFlow has threads for all of them: hence --bind-to none.
# shellcheck disable=SC2086
exec mpirun ${MPIRUN_FLAGS:--np 3 --oversubscribe} --bind-to none --mca odls_base_sigkill_timeout 10 \
  python -m ps_train --num_ps=1 --train_dir=runs/mpi "$@"
