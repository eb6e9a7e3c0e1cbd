#!/usr/bin/env bash
# Every kernel under compute-sanitizer's memcheck, small, with one rank that is its own peer. Exits 1 if one is not clean.
set -u
failed=0
check() { # kernel, shape
  local log
  log=$(mktemp)
  timeout 120 compute-sanitizer --tool memcheck --target-processes all "${PYTHON:-python3}" -m mkbench run "$1" \
    --platform cuda --cluster 1x8-h200 --nodes 1 --ranks-per-node 1 --shape "$2" --comm-sms 4 --samples 1 > "$log" 2>&1
  local code=$?
  local errors right
  errors=$(sed -nE 's/.*ERROR SUMMARY: ([0-9]+) error.*/\1/p' "$log" | paste -sd +)
  right=$(grep -o 'all [0-9]* elements are right' "$log")
  printf '%-18s %-48s %s errors; %s\n' "$1" "$2" "${errors:-no summary of}" "${right:-exit $code}"
  if [[ $code != 0 || ! $errors =~ ^0(\+0)*$ || -z $right ]]; then
    failed=1
    tail -n 30 "$log"
  fi
  rm -f "$log"
}
check ag_gemm m=300,n=520,k=72
check gemm_ar m=300,n=520,k=72
check gemm_rs m=300,n=520,k=72
check moe_dispatch_gemm t=200,hidden=136,inter=300,experts=6,topk=2
check ring_attention b=1,h=4,g=2,s=500,d=64,causal=1
check ring_attention b=1,h=2,g=2,s=300,d=128,causal=0
exit $failed
