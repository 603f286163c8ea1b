#!/bin/sh
# A Slurm prolog (slurm.conf: Prolog=/etc/slurm/prolog.d/rankclock.sh, PrologFlags=Alloc): before a job starts, its nodes
# compare their clocks. A node whose own clock is the odd one out exits 1, and Slurm drains it and requeues the job. The
# others, and jobs whose clocks cannot be compared, go on: a prolog that fails without need takes nodes away.
[ "${SLURM_JOB_NUM_NODES:-0}" -gt 1 ] 2>/dev/null || case "$SLURM_JOB_NODELIST" in *[[,]*) ;; *) exit 0 ;; esac

answer=$(rankclock preflight --hosts "$SLURM_JOB_NODELIST" --job "slurm-$SLURM_JOB_ID" --timeout 20 --json 2>/dev/null)
printf '%s' "$answer" | python3 -c '
import json, sys
try:
    found = json.load(sys.stdin)
except ValueError:
    sys.exit(0)
if found.get("odd"):
    print("rankclock:", found["line"])
    sys.exit(1)
'
