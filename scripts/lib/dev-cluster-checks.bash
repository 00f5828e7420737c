# shellcheck shell=bash disable=SC2154,SC2034 # sourced by scripts/dev-cluster, shares its variables
# What a development cluster needs of this machine, checked before anything is started; each check ends
# the script with a sentence that names the remedy. Sets who runs what, and whether Slurm keeps to loopback.

set_users() {
    if ((EUID == 0)); then
        slurm_user=slurm munge_user=munge slurmd_user=root
        id slurm munge >/dev/null 2>&1 || die "the users slurm and munge do not exist; run scripts/install-deps"
    else
        slurm_user=$(id -un 2>/dev/null) || die "the user id $EUID has no name, which Slurm needs"
        munge_user=$slurm_user slurmd_user=$slurm_user
    fi
}

check_tools() {
    local tool
    for tool in munged slurmctld slurmd scontrol sinfo squeue scancel setpriv setsid flock getent; do
        command -v "$tool" >/dev/null || die "the program $tool is missing; run scripts/install-deps"
    done
}

# Slurm can listen on every address, or on the one that the host's name has; srun too, and what it
# started calls it back at 127.0.0.1 whatever other loopback address (such as Debian's 127.0.1.1) that is.
set_addresses() {
    local host address
    host=$(uname -n)
    address=$(getent ahostsv4 "$host" | awk 'NR == 1 { print $1 }') || true
    loopback_only=yes
    [[ $address != 127.0.0.1 ]] || return 0
    [[ $any_address == yes ]] ||
        die "this host's name $host is ${address:-unknown}, so Slurm cannot keep to 127.0.0.1: put the line '127.0.0.1 $host'" \
            "first in /etc/hosts, or let Slurm listen on all addresses with --any-address (or BFT_DEV_CLUSTER_ANY_ADDRESS=yes)"
    loopback_only=
}

check_dir() {
    [[ $dir =~ ^[A-Za-z0-9/._+@-]+$ ]] || die "the folder's name '$dir' holds characters that Slurm's files cannot; choose another --dir"
    ((${#dir} <= 70)) || die "the folder's name '$dir' is too long for the sockets in it (70 characters at most); choose another --dir"
    if [[ -e $dir && ! -e $dir/settings && -n $(ls -A "$dir" 2>/dev/null) ]]; then
        die "$dir exists, is not empty and is not a cluster of mine; choose another --dir"
    fi
}

# Nobody else's folder: root may stop a user's cluster, but not start it (it would own files there).
check_owner() {
    [[ -d $dir ]] || return 0
    [[ -O $dir || ($command == down && $EUID -eq 0) ]] || die "$dir belongs to $(stat -c %U "$dir"), only they can do this"
}

# As root, other users run the daemons and the jobs: say at once what they cannot reach.
check_reach() {
    ((EUID == 0)) || return 0
    require_access slurm -x "$dir" "choose another --dir"
    require_access nobody -x "$dir" "choose another --dir"
    [[ $plugin == none ]] || require_access nobody -r "$plugin" "copy it elsewhere and use --plugin, or --no-plugin"
    [[ $plugin == none || ! -e $release/bftrainer ]] ||
        require_access nobody -x "$release/bftrainer" "move the repository, or --no-plugin"
    [[ $bftrainerd == no ]] || require_access slurm -x "$release/bftrainerd" "move the repository, or --no-bftrainerd"
}

require_access() { # USER -x|-r PATH REMEDY
    local barrier=/ part
    user_prefix "$1"
    ! "${as_user[@]}" test "$2" "$3" || return 0
    while IFS= read -r -d / part; do
        barrier=${barrier%/}/$part
        "${as_user[@]}" test -x "$barrier" || break
    done <<<"${3#/}/"
    die "user $1 cannot reach $3, because of the permissions of $barrier ($(stat -c %A "$barrier")); $4"
}
