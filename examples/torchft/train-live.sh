#!/bin/bash
#SBATCH --job-name=torchft-digits
#
# A torchft replica per node; processes that stay keep running when nodes come and go.
#
#     sbatch --bftrainer=nodes=1-8 train-live.sh --epochs 200
#
# TORCHFT_PYTHON: a Python that has torch and torchft.

# Slurm runs a copy of this script, so "$0" helps only outside of a job.
for dir in "$TORCHFT_EXAMPLE_DIR" "$SLURM_SUBMIT_DIR" "$SLURM_SUBMIT_DIR/examples/torchft" "$(dirname "$0")"; do
    [ -f "$dir/train_live.py" ] && break
done

srun bftrainer run --live --notify USR1 -- "${TORCHFT_PYTHON:-python3}" "$dir/train_live.py" "$@"
