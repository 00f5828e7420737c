#!/bin/bash
#SBATCH --job-name=torch-digits
#
# torchrun on every node starts that node's ranks; bftrainer starts torchrun, once per
# generation. torchrun's own elasticity is not used: a change of nodes is a new generation.
#
#     sbatch --bftrainer=nodes=1-8 train-torchrun.sh --epochs 20

# Slurm runs a copy of this script, so "$0" helps only outside of a job.
for dir in "$TORCH_EXAMPLE_DIR" "$SLURM_SUBMIT_DIR" "$SLURM_SUBMIT_DIR/examples/torch" "$(dirname "$0")"; do
    [ -f "$dir/train.py" ] && break
done

export USE_LIBUV=0 # Debian's PyTorch has none.

# In single quotes: the variables are those of each generation. -r and -t change nothing for
# fewer than ten ranks a node; without them torchrun 1.13 fails under Python 3.11.
export TRAIN="$dir/train.py" RANKS_PER_NODE="${RANKS_PER_NODE:-1}"
# shellcheck disable=SC2016
srun bftrainer run --per-node -- bash -c '
    exec torchrun --nnodes "$BFT_NUM_NODES" --node_rank "$BFT_NODE_RANK" \
        --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
        --nproc_per_node "$RANKS_PER_NODE" -r 9:3 -t 9:3 "$TRAIN" "$@"' torchrun "$@"
