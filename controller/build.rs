//! Links the controller with the site's libslurm and libmunge.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SLURM_LIB_DIR");
    if std::env::var_os("CARGO_FEATURE_SLURM").is_none() {
        return;
    }
    if let Some(folder) = std::env::var_os("SLURM_LIB_DIR") {
        println!(
            "cargo:rustc-link-search=native={}",
            std::path::Path::new(&folder).display()
        );
    }
    println!("cargo:rustc-link-lib=slurm");
    println!("cargo:rustc-link-lib=munge");
}
