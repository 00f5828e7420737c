# shellcheck shell=bash disable=SC2154 # sourced by scripts/dev-cluster, which sets $dir
# Which TCP/UDP ports a development cluster uses: a block of BLOCK ports below the kernel's ephemeral
# range. A block is claimed by a symbolic link REGISTRY/BASE -> DIR, made while REGISTRY is locked, so
# that clusters in different folders, of any user, never get the same one.

readonly REGISTRY=/tmp/bftrainer-dev-cluster-ports
readonly BLOCK=512 FIRST_PORT=10240
# shellcheck disable=SC2034 # read by the command line
readonly MAX_NODES=$((BLOCK - 2))

# The layout of a block.
slurmctld_port() { printf '%d' "$1"; }
bftrainerd_port() { printf '%d' $(($1 + 1)); }
slurmd_ports() { printf '%d-%d' $(($1 + 2)) $(($1 + 1 + $2)); } # BASE NODES

# Sets $port_base to a block of this cluster's own: the one that it had ($1, or empty) if that can be.
claim_ports() {
    local last_base base first blocks i
    last_base=$(last_usable_base)
    blocks=$(((last_base - FIRST_PORT) / BLOCK + 1))
    first=$(cksum <<<"$dir")
    first=$((${first%% *} % blocks))

    lock_registry
    read_busy_ports
    port_base=
    for base in $1 $(for ((i = 0; i < blocks; i++)); do printf '%d ' $((FIRST_PORT + (first + i) % blocks * BLOCK)); done); do
        if block_is_free "$base" && take_claim "$base"; then
            port_base=$base
            break
        fi
    done
    exec 9<&-
    [[ -n $port_base ]] || die "no free block of $BLOCK ports between $FIRST_PORT and $((last_base + BLOCK)):" \
        "stop clusters that are not needed; $REGISTRY says whose they are"
}

release_ports() { # BASE
    if [[ $(readlink "$REGISTRY/$1" 2>/dev/null) == "$dir" ]]; then
        rm -f "${REGISTRY:?}/$1"
    fi
}

lock_registry() {
    [[ -d $REGISTRY ]] || mkdir -m 1777 "$REGISTRY" 2>/dev/null || [[ -d $REGISTRY ]] || die "cannot make $REGISTRY"
    [[ ! -L $REGISTRY && -w $REGISTRY ]] || die "$REGISTRY is not a folder that everybody may write to; remove it"
    exec 9<"$REGISTRY"
    flock -w 30 9 || die "$REGISTRY has been locked by another dev-cluster for 30 s"
}

# Ports of the ephemeral range may be taken by any client at any moment. If that range leaves no room
# below it, the default one's room is used all the same: a collision is then unlikely, not impossible.
last_usable_base() {
    local low
    read -r low _ </proc/sys/net/ipv4/ip_local_port_range || low=32768
    ((low >= FIRST_PORT + 4 * BLOCK)) || low=32768
    printf '%d' $(((low - FIRST_PORT) / BLOCK * BLOCK + FIRST_PORT - BLOCK))
}

# The claim is ours already, or nobody's, or of a cluster whose folder is gone.
take_claim() { # BASE
    local claim=$REGISTRY/$1 owner
    owner=$(readlink "$claim" || true)
    [[ $owner != "$dir" ]] || return 0
    [[ -z $owner || -d $owner ]] || rm -f "$claim" 2>/dev/null || return 1
    ln -sT "$dir" "$claim" 2>/dev/null
}

# Fills $busy with the ports that something listens on.
read_busy_ports() {
    declare -gA busy=()
    local hex
    for hex in $(listening_ports tcp tcp6 udp udp6); do
        busy[$((16#$hex))]=1
    done
}

# In hexadecimal, as the kernel's tables have them (state 0A is TCP's LISTEN; UDP sockets have none).
listening_ports() { # TABLE...
    local table
    for table in "$@"; do
        [[ ! -r /proc/net/$table ]] ||
            awk -v udp="${table%tcp*}" 'FNR > 1 && (udp || $4 == "0A") { sub(/.*:/, "", $2); print $2 }' "/proc/net/$table"
    done
}

block_is_free() { # BASE
    local port
    for port in "${!busy[@]}"; do
        ((port < $1 || port >= $1 + BLOCK)) || return 1
    done
}

listens_on() { # TCP-PORT
    # -q would end before its input does, whose writer then fails.
    listening_ports tcp tcp6 | grep -Fx "$(printf '%04X' "$1")" >/dev/null
}
