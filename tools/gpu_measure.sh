#!/usr/bin/env bash
# All that is measured on a GPU, in one call:  tools/gpu_measure.sh OUT [STAGES]
#
# STAGES is a comma list of doctor, tests, memcheck, soak (or soak-1x4, soak-2x2, soak-2x4), mutants, memory (where network
# buffers lie; or memory-shm, memory-tcp), pace (or pace-nvlink, pace-network), reduction (or reduction-ar, reduction-rs) and
# sweep (or sweep-1x4, sweep-2x2, sweep-2x4); all of them if left out. Every stage has a time limit, and none stops the next.
# Each prints one line, which is in OUT/table.txt too, and the rest into OUT/<stage>.log; the records of the sweeps are in
# OUT/1x4 and so on. Exits with 1 if a stage failed. PYTHON is the interpreter; it needs pytest for the tests.
set -u
[[ $# -ge 1 ]] || { sed -n '2,8s/^# \?//p' "$0"; exit 2; }
out=$(realpath -m "$1") stages=${2:-all} python=${PYTHON:-python3} failed=0
cd "$(dirname "$0")/.." && mkdir -p "$out" || exit 3
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

summary() { # one line about what a stage has found
  case $1 in
  doctor) grep -m1 '^ *cuda  ' | tr -s ' ' ;;
  tests) tail -n 1 ;;
  soak-*) sed -nE 's/ launches right, *[0-9.]+ s */ right /p' | tr -s ' ' | paste -sd ';' ;;
  mutants)
    sed -nE 's/.* ([0-9]+) of ([0-9]+) launches right.*/\1 \2/p' |
      awk '$1 != $2 { noticed++ } END { print noticed + 0 " of " NR " soaks notice their mutant" }'
    ;;
  memcheck) sed -nE 's/^([a-z_]+) .* ([0-9+]+) errors; all.*/\1 \2/p' | paste -sd ';' ;;
  memory-* | pace-* | reduction-*) sed -nE 's/^.* m([0-9]+)n.* ([^ ]+): .*ratio ([0-9.]+) .*/\1 \2 \3/p' | paste -sd ';' ;;
  sweep-*)
    local records=$out/${1#*-}/records.jsonl
    if [[ -s $records ]]; then
      awk '/"status": "ok"/ { ok++ } END { print ok + 0 " of " NR " points are ok" }' "$records"
    else
      tail -n 1
    fi
    ;;
  esac < "$out/$1.log"
}

stage() { # name, limit in seconds, command ...
  local name=$1 limit=$2 begin=$SECONDS code
  shift 2
  [[ ,$stages, == *,all,* || ,$stages, == *,$name,* || ,$stages, == *,${name%%-*},* ]] || return 0
  timeout --kill-after=20 "$limit" "$@" > "$out/$name.log" 2>&1
  code=$?
  [[ $code == 0 ]] || failed=1
  printf '%-10s %5d s  exit %3d  %s\n' "$name" $((SECONDS - begin)) $code "$(summary "$name" 2>&1)" | tee -a "$out/table.txt"
}

soak() { # where
  stage "soak-$1" 240 "$python" tools/soak.py --launches 300 --where "$1"
}

abba() { # stage, where, setting=first,second, options
  local name=$1 where=$2 setting=$3
  shift 3
  stage "$name" 120 "$python" tools/abba.py --where "$where" --setting "$setting" "$@"
}

sweep() { # nodes, ranks a node, partitions
  stage "sweep-$1x$2" 400 "$python" -m mkbench sweep --platform cuda --cluster 1x4-h200-virtual \
    --nodes "$1" --ranks-per-node "$2" --transport shm --policy static,adaptive --samples 20 --seed 7 \
    --sizes 2048,4096,8192 --comm-sms "$3" --out "$out/$1x$2"
  # They can be drawn again anywhere.
  rm -rf "$out/$1x$2/figures" "$out/$1x$2/.lock"
}

: > "$out/table.txt"
stage doctor 60 "$python" -m mkbench doctor
stage tests 420 "$python" -m pytest -q -o addopts= -p no:cacheprovider --durations 5 -m gpu tests/gpu
stage memcheck 300 tools/gpu_memcheck.sh
soak 1x4
soak 2x2
soak 2x4
stage mutants 240 tools/gpu_mutants.sh
abba memory-shm 2x2 network_memory=device,host --transport shm --sizes 1024,2048,4096,8192 --comm-sms 4,8,16
abba memory-tcp 2x2 network_memory=device,host --transport tcp --sizes 1024,2048,4096,8192 --comm-sms 4,8,16
# Against a rate that nothing reaches.
abba pace-nvlink 1x4 pace=nvlink=450,nvlink=1e5 --sizes 2048,8192 --comm-sms 4,8
abba pace-network 2x2 pace=network=50,network=1e5 --transport shm --sizes 2048,8192 --comm-sms 4,8
abba reduction-ar 1x4 reduction=atomic,ordered --kernel gemm_ar --sizes 2048,4096,8192 --comm-sms 4,8
abba reduction-rs 1x4 reduction=atomic,ordered --kernel gemm_rs --sizes 2048,4096,8192 --comm-sms 4,8
sweep 1 4 1,2,4,6,8,12,16
sweep 2 2 1,2,4,6,8,12,16
sweep 2 4 1,2,3,4,6,8
[[ -s $out/table.txt ]] || { echo "no stage of that name: $stages"; exit 2; }
exit $failed
