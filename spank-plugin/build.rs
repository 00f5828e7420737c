//! Keeps the plugin mapped until its process ends: Slurm may unload plugins
//! while a name lookup of ours still runs, or from within `exit` below a hook.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
