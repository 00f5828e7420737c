#!/bin/bash
# A training program for tests that need no learning: rank 0 counts on from its checkpoint,
# all end with the exit code that the file "end" in the submit directory holds.
# Each start is a line "generation rank ranks node" in starts.log, each sample a line
# "generation sample" in counted.log.
echo "$BFT_GENERATION $RANK $WORLD_SIZE $BFT_NODE" >> starts.log

checkpoint=$BFT_CKPT_DIR/samples
samples=$(cat "$checkpoint" 2>/dev/null || echo 0)
while [ ! -s end ]; do
    if [ "$RANK" = 0 ]; then
        samples=$((samples + 1))
        echo "$BFT_GENERATION $samples" >> counted.log
        echo "$samples" > "$checkpoint.new" && mv "$checkpoint.new" "$checkpoint"
        bftrainer progress --samples "$samples"
    fi
    sleep 0.2
done
exit "$(cat end)"
