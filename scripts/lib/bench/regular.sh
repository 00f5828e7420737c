#!/bin/bash
# A regular job for measurements: says when it starts (to $1.start) and ends (to $1.ended), epoch seconds;
# it ends when something is written to the pipe $1.end.
echo "$EPOCHREALTIME" > "$1.start"
read -r _ < "$1.end"
echo "$EPOCHREALTIME" > "$1.ended"
