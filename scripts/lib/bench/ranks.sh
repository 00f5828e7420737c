#!/bin/bash
# A training for measurements, whose ranks sleep so that this machine's cores don't decide. Each start
# of a rank is a line "epoch-seconds generation node" in starts.log. $1 = stubborn: SIGTERM is ignored.
[ "$1" != stubborn ] || trap '' TERM
echo "$EPOCHREALTIME $BFT_GENERATION $BFT_NODE" >> starts.log
[ "$RANK" = 0 ] || exec sleep 1000000

checkpoint=$BFT_CKPT_DIR/samples
samples=$(cat "$checkpoint" 2>/dev/null || echo 0)
while :; do
    samples=$((samples + WORLD_SIZE))
    echo "$samples" > "$checkpoint.new" && mv "$checkpoint.new" "$checkpoint"
    bftrainer progress --samples "$samples"
    sleep 1
done
