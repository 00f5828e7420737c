# shellcheck shell=bash disable=SC2154 # sourced by scripts that have set $repo and know their arguments
# Builds what a measurement runs, unless only help is asked for.
case " $* " in
    *" -h "* | *" --help "*) ;;
    *)
        PATH=$PATH:${HOME:-/root}/.cargo/bin
        (cd "$repo" && CARGO_TARGET_DIR=$repo/target cargo build --quiet --release --workspace)
        ;;
esac
