#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --bftrainer=nodes=1-8
#
# The plain form: a batch script that knows nothing of trainers but its tag. The whole
# script is started once per node and generation, with RANK, WORLD_SIZE and the rest set.
#
#     sbatch train.sh --epochs 20

# Slurm runs a copy of this script, so "$0" helps only outside of a job.
for dir in "$DIGITS_DIR" "$SLURM_SUBMIT_DIR" "$SLURM_SUBMIT_DIR/examples/digits" "$(dirname "$0")"; do
    [ -f "$dir/digits.csv.gz" ] && break
done

# exec: it is python that must get SIGTERM, not a shell that dies of it.
exec python3 "$dir/train.py" "$@"
