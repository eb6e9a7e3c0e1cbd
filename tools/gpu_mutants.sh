#!/usr/bin/env bash
# Weakens the protocol, one edit at a time, and soaks each on this machine's GPU. A GPU may hide what it breaks: the
# simulator and ThreadSanitizer are what catches these; this only reports what the hardware shows.
set -u
launches=${1:-100}
mutate() {  # name, file, from, to
  local tree
  tree=$(mktemp -d)
  cp -r mkbench kernels configs tools "$tree"
  python3 - "$tree/kernels/$2" "$3" "$4" <<'PY' || exit 1
import pathlib, sys
path, old, new = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
text = path.read_text()
assert old in text, f"{path}: no {old!r}"
path.write_text(text.replace(old, new))
PY
  echo "== $1"
  (cd "$tree" && PYTHONPATH="$tree:${PYTHONPATH-}" timeout 120 python3 tools/soak.py --kernels gemm_ar --launches "$launches" --where 1x4 2x2 2>&1 | tail -4)
  rm -rf "$tree"
}
mutate "wait without acquire" mk/flags.h "first_below<Order::acquire, scope>" "first_below<Order::relaxed, scope>"
mutate "ready signal at gpu scope" mk/reduction.h "signal<Scope::system>(block, map.told(map.owner(tile)" "signal<Scope::gpu>(block, map.told(map.owner(tile)"
mutate "signal without release" mk/flags.h "store<Order::release, scope>" "store<Order::relaxed, scope>"
mutate "signal before all threads have stored" mk/flags.h "  block.sync();
  if (block.leader()) store<Order::release" "  if (block.leader()) store<Order::release"
mutate "copy to the GPU not ordered after the one from it" proxy/staged.h " && engine_.order_after_last_from_gpu()" ""
