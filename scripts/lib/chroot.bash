# shellcheck shell=bash # sourced by scripts that try things on a system of their own, and define die
# A chroot to try things in.

require_chroot_tools() {
    [[ $EUID == 0 ]] || die "only root can make a chroot"
    command -v debootstrap >/dev/null || die "debootstrap is missing; install it with: apt-get install debootstrap"
}

# ROOT becomes a minimal system of SUITE, unless it is a system already.
make_chroot() { # SUITE ROOT
    [[ -e $2/etc/debian_version ]] || debootstrap --variant=minbase "$1" "$2"
    # Slurm looks the host's name up.
    grep -qw "$(hostname)" "$2/etc/hosts" 2>/dev/null || printf '127.0.0.1 localhost %s\n' "$(hostname)" >>"$2/etc/hosts"
}
