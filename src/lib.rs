//! The ground floor that the plugin and the controller share: bindings to the
//! site's Slurm, the trainer specification, the hint and the wire messages.

pub mod hint;
pub mod plugin_args;
pub mod spec;
pub mod wire;

/// Bindings generated from the site's Slurm, SPANK and munge headers.
#[cfg(feature = "slurm")]
#[allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unknown_lints, // Of Rust newer than what is required here.
    unnecessary_transmutes,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all
)]
pub mod sys {
    include!(concat!(env!("OUT_DIR"), "/slurm.rs"));
}
