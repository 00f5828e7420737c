#!/bin/bash
#SBATCH --job-name=torch-digits
#SBATCH --bftrainer=nodes=1-8
#
# A rank per node, started by bftrainer: the whole script once per node and generation, with
# RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
#
#     sbatch train.sh --epochs 20

# Slurm runs a copy of this script, so "$0" helps only outside of a job.
for dir in "$TORCH_EXAMPLE_DIR" "$SLURM_SUBMIT_DIR" "$SLURM_SUBMIT_DIR/examples/torch" "$(dirname "$0")"; do
    [ -f "$dir/train.py" ] && break
done

export USE_LIBUV=0 # Debian's PyTorch has none.

# exec: it is python that must get SIGTERM, not a shell that dies of it.
exec python3 "$dir/train.py" "$@"
