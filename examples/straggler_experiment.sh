#!/usr/bin/env bash
# What a straggler costs, and what helps: async, sync, and sync with a backup worker, each with and without one slow worker.
#
#   examples/straggler_experiment.sh DIR [BATCHES] [flags of ps_train experiment]
#   examples/straggler_experiment.sh runs/straggler              # 3 seeds, in some minutes; then open runs/straggler/report.html
#
# Three workers train examples/fashion_mnist_mlp.py on BATCHES (600) batches of 32 that count: in async each is a step, in sync three
# are one, with a backup worker two, as the last one to come is dropped. So all see as many examples, and `training s` is what they
# take for that. The straggler, worker 2, gets a batch every 50 ms and no sooner: in the report it is `slow=2:50`, none is `slow=none`.
# The same command again goes on where it was stopped.
set -euo pipefail
if [ $# -lt 1 ]; then
  sed -n '2,10p' "${BASH_SOURCE[0]}" | cut -c3- >&2
  exit 1
fi
out=$1 batches=${2:-600}
shift $(($# < 2 ? 1 : 2))

model=$(dirname "${BASH_SOURCE[0]}")/fashion_mnist_mlp.py
straggler="model_params.slow=none,2:50"
exec python -m ps_train experiment --model="$model" --num_workers=3 --out="$out" \
  --grid="update=async train_steps=$batches $straggler" \
  --grid="update=sync train_steps=$((batches / 3)) $straggler" \
  --grid="update=sync replicas_to_aggregate=2 train_steps=$((batches / 2)) $straggler" "$@"
