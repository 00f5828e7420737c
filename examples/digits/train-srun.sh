#!/bin/bash
#SBATCH --job-name=digits
#
# The form with a prelude: what stands above the last line runs once per placement (when a
# node joins), the command in the last line once per generation. It is tagged at submission:
#
#     sbatch --bftrainer=nodes=1-8 train-srun.sh --epochs 20

# Slurm runs a copy of this script, so "$0" helps only outside of a job.
for dir in "$DIGITS_DIR" "$SLURM_SUBMIT_DIR" "$SLURM_SUBMIT_DIR/examples/digits" "$(dirname "$0")"; do
    [ -f "$dir/digits.csv.gz" ] && break
done

# The prelude: a real one would load modules or copy the data to the node's own disk.
echo "$(date +%s) job $SLURM_JOB_ID node $(hostname)" >> prelude.log

srun bftrainer run -- python3 "$dir/train.py" "$@"
