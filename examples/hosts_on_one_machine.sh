#!/usr/bin/env bash
# A multi-host test bed on one Linux machine: each task in a network namespace of its own, a host with one slowed-down link.
#
#   sudo -E env "PATH=$PATH" examples/hosts_on_one_machine.sh NUM_PS NUM_WORKERS MBIT [train flags]
#   sudo -E env "PATH=$PATH" examples/hosts_on_one_machine.sh 1 2 100 --train_steps=300 --train_dir=runs/hosts --wire_dtype=bfloat16
#
# It needs root, and the commands ip and tc (Debian: iproute2). Links carry MBIT Mbit/s each way. Nothing of the machine's own
# network is touched, and all is taken away again at the end, also after Ctrl-C. Its status is that of the task that failed first.
set -euo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,5p' "${BASH_SOURCE[0]}" | cut -c3- >&2
  exit 1
fi
num_ps=$1 num_workers=$2 mbit=$3
shift 3

bed=bed$$ hosts=() pids=()
clean_up() {
  trap '' INT TERM
  [ ${#pids[@]} = 0 ] || kill -TERM "${pids[@]}" 2>/dev/null || true
  wait
  for name in "${hosts[@]}" "$bed"; do ip netns delete "$name" 2>/dev/null || true; done
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip netns add "$bed" # the switch
ip -n "$bed" link add br0 type bridge
ip -n "$bed" link set br0 up
for ((n = 0; n < num_ps + num_workers; n++)); do
  name=${bed}h$n
  ip netns add "$name"
  hosts+=("$name")
  ip link add eth0 netns "$name" type veth peer name "port$n" netns "$bed"
  ip -n "$bed" link set "port$n" master br0 up
  ip -n "$name" address add "10.78.0.$((n + 1))/24" dev eth0
  ip -n "$name" link set lo up
  ip -n "$name" link set eth0 up
  for end in "$name:eth0" "$bed:port$n"; do # what it sends, and what it is sent
    ip netns exec "${end%:*}" tc qdisc replace dev "${end#*:}" root tbf rate "${mbit}mbit" burst 256kb latency 50ms
  done
done

list() { # COUNT FIRST: addresses, with commas
  local n out=""
  for ((n = $2; n < $1 + $2; n++)); do out+="${out:+,}10.78.0.$((n + 1)):2222"; done
  echo "$out"
}
start() { # JOB INDEX HOST [flags]
  local job=$1 index=$2 host=$3
  shift 3
  ip netns exec "${hosts[$host]}" python -m ps_train --job_name="$job" --task_index="$index" \
    --ps_hosts="$(list "$num_ps" 0)" --worker_hosts="$(list "$num_workers" "$num_ps")" "$@" &
  pids+=($!)
}
for ((n = 0; n < num_ps; n++)); do start ps "$n" "$n" "$@"; done
for ((n = 0; n < num_workers; n++)); do start worker "$n" $((num_ps + n)) "$@"; done

status=0
for _ in "${pids[@]}"; do
  code=0
  wait -n || code=$? # in the order in which they end
  [ "$status" != 0 ] || status=$code
done
pids=()
exit "$status"
