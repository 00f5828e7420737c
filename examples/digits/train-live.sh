#!/bin/bash
#SBATCH --job-name=digits-live
#
# The live form: processes that stay keep running when nodes come and go, and are told by
# SIGUSR1 that the host file has changed.
#
#     sbatch --bftrainer=nodes=1-8 train-live.sh --epochs 20

# Slurm runs a copy of this script, so "$0" helps only outside of a job.
for dir in "$DIGITS_DIR" "$SLURM_SUBMIT_DIR" "$SLURM_SUBMIT_DIR/examples/digits" "$(dirname "$0")"; do
    [ -f "$dir/digits.csv.gz" ] && break
done

srun bftrainer run --live --notify USR1 -- python3 "$dir/train_live.py" "$@"
