//! Whether the SPANK plugin on this host is the one that this Slurm can load,
//! and whether its line in plugstack.conf leads to this controller.

use std::path::{Path, PathBuf};

use bftrainer::plugin_args::Args;
use object::{Object, ObjectSection, ObjectSymbol};

use super::Severity::Warning;
use super::plugstack::{self, Entry};
use super::{Findings, host};
use crate::config::Config;
use crate::slurm::Site;

/// Ours is recognised by its file's name.
const FILE_NAME: &str = "spank_bftrainer";

/// The symbol in which a plugin tells the Slurm it was built for (spank(8)).
const VERSION_SYMBOL: &[u8] = b"plugin_version";

pub(super) fn check(config: &Config, site: &Site, findings: &mut Findings) {
    let path = &site.conf.plugstack;
    let line = line(config);
    let (entries, problems) = plugstack::read(path);
    let Some(index) = entries.iter().rposition(|entry| is_ours(&entry.plugin)) else {
        let said = if problems.is_empty() {
            String::new()
        } else {
            format!(" ({})", problems.join("; "))
        };
        findings.add(
            Warning,
            path.display().to_string(),
            format!("no line of the BFTrainer plugin on this host{said}"),
            "sbatch --bftrainer is unknown, and changes are seen at the next look only, without \
             hints; trainers tagged by comment run only where the script calls bftrainer run",
            format!("write as the last line: {line}"),
        );
        return;
    };
    let entry = &entries[index];
    check_place(entry, index + 1 == entries.len(), &line, findings);
    check_arguments(config, entry, &line, findings);
    check_version(site, entry, findings);
}

fn is_ours(plugin: &Path) -> bool {
    plugin
        .file_name()
        .is_some_and(|name| name.to_string_lossy().contains(FILE_NAME))
}

/// The line to write.
fn line(config: &Config) -> String {
    format!(
        "optional /usr/lib/slurm/{FILE_NAME}.so controller={} partition={} \
         agent=/usr/bin/bftrainer",
        config.controller, config.partition
    )
}

fn check_place(entry: &Entry, is_last: bool, line: &str, findings: &mut Findings) {
    if entry.required {
        findings.add(
            Warning,
            entry.place.as_str(),
            "the plugin is `required`",
            "where it can't be loaded, slurmd does not start and every sbatch and srun fails",
            format!("write optional: {line}"),
        );
    }
    if !is_last {
        findings.add(
            Warning,
            entry.place.as_str(),
            "the plugin is not the last in the stack",
            "a tagged batch step is executed in the script's place, so what later plugins do in \
             task_init does not happen for it",
            "move the line to the end of the stack",
        );
    }
}

fn check_arguments(config: &Config, entry: &Entry, line: &str, findings: &mut Findings) {
    let place = entry.place.as_str();
    let args = Args::parse(&entry.arguments);
    for problem in &args.problems {
        let means = "the argument is ignored";
        findings.add(
            Warning,
            place,
            problem.as_str(),
            means,
            format!("write: {line}"),
        );
    }
    match &args.controller {
        Some(address) if host::same_address(address, &config.controller) => {}
        Some(address) => findings.add(
            Warning,
            place,
            format!(
                "controller={address}, but bftrainerd listens at {}",
                config.controller
            ),
            "agents that the plugin starts and its hints don't find the controller",
            format!("controller={}", config.controller),
        ),
        None => findings.add(
            Warning,
            place,
            "controller= is missing",
            "no hints: changes are seen at the next look only",
            format!("controller={}", config.controller),
        ),
    }
    if args.partition != config.partition {
        findings.add(
            Warning,
            place,
            format!(
                "partition={}, but bftrainerd's is {}",
                args.partition, config.partition
            ),
            "every job tagged with sbatch --bftrainer goes where nobody places it",
            format!("partition={}", config.partition),
        );
    }
    if let Err(error) = executable(Path::new(&args.agent)) {
        findings.add(
            Warning,
            place,
            format!("agent={}: {error}", args.agent),
            "if compute nodes lack it as well, tagged tasks fail there",
            "install bftrainer there, or correct agent=",
        );
    }
}

fn executable(path: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if metadata.is_file() && metadata.permissions().mode() & 0o111 != 0 {
        Ok(())
    } else {
        Err("not an executable file".to_owned())
    }
}

fn check_version(site: &Site, entry: &Entry, findings: &mut Findings) {
    let path = located(&entry.plugin, &site.conf.plugin_dirs);
    let running = &site.conf.version;
    match built_for(&path) {
        Ok((major, minor)) if running.starts_with(&format!("{major:02}.{minor:02}.")) => {}
        Ok((major, minor)) => findings.add(
            Warning,
            path.display().to_string(),
            format!("built for Slurm {major:02}.{minor:02}, but {running} runs"),
            "Slurm refuses to load it: sbatch --bftrainer is unknown, tagged tasks run without \
             their agent",
            "install the plugin that was built for the running Slurm",
        ),
        Err(error) => findings.add(
            Warning,
            path.display().to_string(),
            error,
            "Slurm can't load it: sbatch --bftrainer is unknown on this host",
            "install the plugin there, or correct the path in plugstack.conf",
        ),
    }
}

/// A name without a slash is looked up in PluginDir.
fn located(plugin: &Path, plugin_dirs: &[PathBuf]) -> PathBuf {
    let places = plugin_dirs.iter().map(|folder| folder.join(plugin));
    let mut existing = places.filter(|path| path.exists());
    existing.next().unwrap_or_else(|| plugin.to_path_buf())
}

/// Major and minor version of the Slurm that the plugin was built for, read
/// from the file; nothing of it is executed.
fn built_for(path: &Path) -> Result<(u32, u32), String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let file = object::File::parse(&*bytes).map_err(|_| "not a shared object".to_owned())?;
    let number = file
        .dynamic_symbols()
        .find(|symbol| symbol.name_bytes() == Ok(VERSION_SYMBOL))
        .and_then(|symbol| {
            let section = file.section_by_index(symbol.section_index()?).ok()?;
            let data = section.data_range(symbol.address(), 4).ok()??;
            Some(u32::from_ne_bytes(data.try_into().ok()?))
        })
        .ok_or("not a SPANK plugin: it has no plugin_version")?;
    // SLURM_VERSION_NUM of slurm_version.h.
    Ok(((number >> 16) & 0xff, (number >> 8) & 0xff))
}
