# shellcheck shell=bash disable=SC2154 # sourced by scripts/dev-cluster, which sets the variables
# Starting, watching and stopping a development cluster's processes. Every daemon has a pid file in
# $dir and carries "$MARK=$dir" in its environment, so that a pid that was given to another process
# since is not taken for ours, and `down` finds what lost its pid file.

readonly MARK=BFT_DEV_CLUSTER_DAEMON

pid_file() { # NAME: munged, slurmctld, slurmd-nX or bftrainerd
    case $1 in
        munged) printf '%s' "$dir/munge/munged.pid" ;;
        *) printf '%s' "$dir/run/$1.pid" ;;
    esac
}

log_file() { # NAME
    case $1 in
        munged) printf '%s' "$dir/munge/munged.log" ;;
        *) printf '%s' "$dir/log/$1.log" ;;
    esac
}

# True when the daemon runs. Sets $pid to what its pid file says, or to nothing.
alive() { # NAME
    pid=
    { read -r pid <"$(pid_file "$1")"; } 2>/dev/null || true
    [[ $pid =~ ^[0-9]+$ ]] && process_exists "$pid" "${1%-n*}" && is_marked "$pid"
}

# A zombie does not count: PID 1 of a container may never reap it.
process_exists() { # PID [its command's name]
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    [[ -z ${2:-} || $stat == "$1 ($2)"* ]] || return 1
    [[ ! ${stat##*) } =~ ^[ZX] ]]
}

# A process whose environment we may not read gets the benefit of the doubt.
is_marked() { # PID
    local entry
    [[ -r /proc/$1/environ ]] || return 0
    { while IFS= read -r -d '' entry; do
        [[ $entry != "$MARK=$dir" ]] || return 0
    done <"/proc/$1/environ"; } 2>/dev/null
    return 1
}

wait_until() { # SECONDS COMMAND...
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS <= deadline)) || return 1
        sleep 0.05
    done
}

# Sets $as_user to the words that go before a command which is to run as USER, when we are root
# (otherwise everything is the caller's).
user_prefix() { # USER
    as_user=()
    if ((EUID == 0)) && [[ $1 != root ]]; then
        as_user=(setpriv --reuid="$1" --regid="$(id -g "$1")" --init-groups --)
    fi
}

# For daemons that put themselves into the background: a small environment of their own. Descriptor 8
# is the lock on $dir, which must not live on in a daemon.
launch() { # NAME USER COMMAND...
    local name=$1 user=$2 said=$dir/run/$1.said
    shift 2
    user_prefix "$user"
    "${as_user[@]}" env -i PATH="$PATH" LANG=C "$MARK=$dir" "$@" >"$said" 2>&1 </dev/null 8<&- ||
        die_with_log "$name" "$name did not start"
    [[ -s $said ]] || rm -f "$said"
}

# Waits for the pid file of a daemon that was launched a moment ago.
await_daemon() { # NAME
    wait_until 60 alive_or_ended "$1" || true
    alive "$1" || die_with_log "$1" "$1 did not start"
}

alive_or_ended() { # NAME
    local -a processes
    local look
    # A look at /proc misses a process that just handed over to its child, so one look is not enough.
    for look in 1 2 3; do
        ! alive "$1" || return 0
        mapfile -t processes < <(having_in_environment "$MARK=$dir" /proc/[0-9]*/environ)
        # Its name, or its node's, is a word of its command line.
        if ((${#processes[@]} > 0)) && grep -qazFx -e "${1#slurmd-}" "${processes[@]/%environ/cmdline}" 2>/dev/null; then
            return 1
        fi
        ((look == 3)) || sleep 0.1
    done
}

start_munged() {
    launch munged "$munge_user" munged --force --key-file="$dir/munge/munge.key" --socket="$dir/munge/munge.socket" \
        --pid-file="$(pid_file munged)" --log-file="$(log_file munged)" --seed-file="$dir/munge/munged.seed"
    await_daemon munged
}

start_slurmctld() {
    rm -f "$(pid_file slurmctld)"
    launch slurmctld "$slurm_user" slurmctld -f "$dir/slurm.conf"
    await_daemon slurmctld
    wait_until 60 slurmctld_answers_or_ended || die_with_log slurmctld "slurmctld does not answer"
    alive slurmctld || die_with_log slurmctld "slurmctld ended at its start"
}

slurmctld_answers() { timeout 15 scontrol ping >/dev/null 2>&1; }

slurmctld_answers_or_ended() { slurmctld_answers || ! alive slurmctld; }

start_slurmd() { # nX
    rm -f "$(pid_file "slurmd-$1")"
    launch "slurmd-$1" "$slurmd_user" slurmd -N "$1" -f "$dir/slurm.conf"
}

# Waits until slurmctld has heard from every node.
await_nodes() {
    local node
    for node in $(node_names); do
        await_daemon "slurmd-$node"
    done
    wait_until $((30 + nodes / 4)) all_nodes_are_up && return
    node=$(nodes_not_up)
    node=${node%%$'\n'*}
    die_with_log "slurmd-${node%% *}" "node ${node%% *} did not come up, it is ${node#* }"
}

all_nodes_are_up() { [[ -z $(nodes_not_up) ]]; }

# "NAME STATE" for each node that does not respond, or is down, or has not registered since
# slurmctld's start. Drained, reserved and busy nodes are up.
nodes_not_up() {
    timeout 15 scontrol show nodes --oneliner 2>&1 | awk '
        NF == 0 { next }
        { state = "without an answer from slurmctld"; started = ""; name = "n1" }
        { for (i = 1; i <= NF; i++) {
              if ($i ~ /^NodeName=/) name = substr($i, 10)
              else if ($i ~ /^State=/) state = substr($i, 7)
              else if ($i ~ /^SlurmdStartTime=/) started = substr($i, 17) } }
        state ~ /[*]|UNKNOWN|DOWN|NOT_RESPONDING|without/ || started !~ /^[0-9]/ { print name, state }'
}

# bftrainerd stays in the foreground, so it is put into a session of its own. It inherits the caller's
# environment (RUST_LOG and the like).
start_bftrainerd() {
    local log child port
    log=$(log_file bftrainerd)
    port=$(bftrainerd_port "$port_base")
    user_prefix "$slurm_user"
    (cd / && exec env "$MARK=$dir" SLURM_CONF="$dir/slurm.conf" setsid "${as_user[@]}" \
        "$release/bftrainerd" --config "$dir/bftrainer.toml") >>"$log" 2>&1 </dev/null 8<&- &
    child=$!
    printf '%d\n' "$child" >"$(pid_file bftrainerd)"
    wait_until 60 listens_or_ended "$port" "$child" || die_with_log bftrainerd "bftrainerd does not listen on port $port"
    process_exists "$child" || die_with_log bftrainerd "bftrainerd ended at its start"
}

listens_or_ended() { # PORT PID
    listens_on "$1" || ! process_exists "$2"
}

# SIGTERM to all of them at once, SIGKILL to those that are still there after SECONDS.
stop_daemons() { # SECONDS NAME...
    local seconds=$1 name
    local -a pids=()
    shift
    for name in "$@"; do
        if alive "$name"; then
            pids+=("$pid")
            kill -TERM "$pid" 2>/dev/null || true
        fi
    done
    if ! wait_until "$seconds" none_exists "${pids[@]}"; then
        say "$1 did not end within $seconds s of SIGTERM; killed"
        kill -KILL "${pids[@]}" 2>/dev/null || true
        wait_until 30 none_exists "${pids[@]}" || die "cannot end $1 (process ids: ${pids[*]})"
    fi
    for name in "$@"; do
        rm -f "$(pid_file "$name")"
    done
}

none_exists() { # PID...
    local one
    for one in "$@"; do
        ! process_exists "$one" || return 1
    done
}

# Cancels jobs until none is left, whatever is requeued or submitted meanwhile.
cancel_jobs() {
    local kill_wait
    # Without munged every question would wait for its time-out.
    alive munged && alive slurmctld && slurmctld_answers || return 0
    kill_wait=$(sed -n 's/^KillWait=//Ip' "$dir/slurm.conf")
    wait_until $((kill_wait + 15)) cancel_once ||
        say "some jobs did not end within $((kill_wait + 15)) s of scancel; their processes are killed"
}

# True when there was no job to cancel.
cancel_once() {
    local jobs
    jobs=$(timeout 15 squeue --noheader --format=%F 2>/dev/null | sort -u) || return 1
    [[ -n $jobs ]] || return 0
    # shellcheck disable=SC2086 # one argument per job
    timeout 15 scancel $jobs >/dev/null 2>&1 || true
    return 1
}

# Ends what is still there of this cluster and was not found by a pid file: daemons, slurmstepd, the
# processes of jobs, those too that left their step's process tree, and clients (which would go on
# asking for a slurmctld that is gone).
kill_leftovers() {
    ! wait_until 1 no_leftovers || return 0
    say "killing what outlived its job or daemon: $(leftovers | describe)"
    wait_until 30 kill_round || die "processes of this cluster cannot be ended: $(leftovers | tr '\n' ' ')"
}

no_leftovers() { [[ -z $(leftovers) ]]; }

describe() { # PIDs on standard input
    local one
    while read -r one; do
        printf '%s (%s) ' "$(cat "/proc/$one/comm" 2>/dev/null)" "$one"
    done
}

kill_round() {
    local -a found
    mapfile -t found < <(leftovers)
    ((${#found[@]} > 0)) || return 0
    kill -KILL "${found[@]}" 2>/dev/null || true
    return 1
}

leftovers() {
    local file own
    own=" $(own_ancestry) "
    {
        having_in_environment "$MARK=$dir" /proc/[0-9]*/environ
        for file in $(having_in_environment "SLURM_CONF=$dir/slurm.conf" /proc/[0-9]*/environ); do
            if [[ $(cat "${file%environ}comm" 2>/dev/null) =~ ^(slurmstepd|srun|salloc|sbatch)$ ]] || grep -qaz '^SLURM_JOB_ID=' "$file" 2>/dev/null; then
                printf '%s\n' "$file"
            fi
        done
    } | sort -u | while IFS=/ read -r _ _ pid _; do
        [[ $own == *" $pid "* ]] || printf '%s\n' "$pid"
    done
}

having_in_environment() { # VARIABLE=VALUE FILE...
    local entry=$1
    shift
    grep -lazFx -e "$entry" "$@" 2>/dev/null || true
}

own_ancestry() {
    local one=$$ stat
    while ((one > 1)); do
        printf '%d ' "$one"
        { read -r stat <"/proc/$one/stat"; } 2>/dev/null || return 0
        read -r _ one _ <<<"${stat##*) }"
    done
}

remove_sockets() {
    local folder
    for folder in "$dir/munge" "$dir/spool"; do
        [[ ! -d $folder ]] || find "$folder" -type s -delete
    done
    rm -f "$dir/munge/munge.socket.lock"
}
