//! Generates the bindings to the site's Slurm, SPANK and munge headers.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "slurm")]
    slurm::generate();
}

#[cfg(feature = "slurm")]
mod slurm {
    use std::path::{Path, PathBuf};

    /// Header and the Debian package that brings it.
    const HEADERS: [(&str, &str); 3] = [
        ("slurm/slurm.h", "libslurm-dev"),
        ("slurm/spank.h", "libslurm-dev"),
        ("munge.h", "libmunge-dev"),
    ];

    pub fn generate() {
        println!("cargo:rerun-if-env-changed=SLURM_INCLUDE_DIR");
        println!("cargo:rerun-if-changed=include/wrapper.h");
        let include = std::env::var_os("SLURM_INCLUDE_DIR").map(PathBuf::from);
        require_headers(include.as_deref());

        let mut builder = bindgen::Builder::default()
            .header("include/wrapper.h")
            .allowlist_function("slurm_.*|spank_.*|munge_.*")
            .allowlist_type("slurm.*|spank.*|munge.*|job_.*|node_.*|.*_msg_t|.*_info_t")
            .allowlist_var("BFT_.*|SLURM.*|ESLURM.*|ESPANK.*|EMUNGE.*|MUNGE.*|JOB_.*|NODE_.*|NO_VAL.*|INFINITE.*|RESERVE_.*|SPANK_.*|S_.*|PREEMPT_MODE_.*|PROLOG_FLAG_.*")
            .default_enum_style(bindgen::EnumVariation::Consts)
            .prepend_enum_name(false)
            .derive_default(true)
            .layout_tests(false)
            .generate_comments(false);
        if let Some(dir) = &include {
            println!("cargo:rerun-if-changed={}", dir.display());
            builder = builder.clang_arg(format!("-I{}", dir.display()));
        }
        let bindings = builder.generate().unwrap_or_else(|error| {
            fail(&format!(
                "the Slurm headers could not be read: {error}; \
                 is libclang installed (Debian: libclang-dev)?"
            ))
        });
        let Some(folder) = std::env::var_os("OUT_DIR") else {
            fail("OUT_DIR is not set: this is a build script, which cargo runs");
        };
        let out = Path::new(&folder).join("slurm.rs");
        if let Err(error) = bindings.write_to_file(&out) {
            fail(&format!("{} could not be written: {error}", out.display()));
        }
    }

    fn require_headers(include: Option<&Path>) {
        let mut folders = vec![
            PathBuf::from("/usr/include"),
            PathBuf::from("/usr/local/include"),
        ];
        folders.splice(0..0, include.map(Path::to_path_buf));
        for (header, package) in HEADERS {
            if folders.iter().any(|folder| folder.join(header).is_file()) {
                println!("cargo:rerun-if-changed=/usr/include/{header}");
                continue;
            }
            fail(&format!(
                "{header} was not found: install {package} (scripts/install-deps does), set \
                 SLURM_INCLUDE_DIR to the folder that holds it, or build without the feature \
                 `slurm` (cargo build --no-default-features)"
            ));
        }
    }

    fn fail(message: &str) -> ! {
        eprintln!("error: {message}");
        std::process::exit(1);
    }
}
