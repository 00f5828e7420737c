//! Manual pages and shell completions, made from the commands' own options and
//! from the tables of docs/admin.md, so that they can't say anything else.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use roff::{Inline, Roff, bold, roman};

/// The tables of settings and of the plugin's arguments.
const ADMIN_GUIDE: &str = include_str!("../../docs/admin.md");

const SETTINGS: &str = "| setting | meaning | default |";
const PLUGIN_ARGUMENTS: &str = "| argument | meaning | default |";

const FILES: &[(&str, &str)] = &[
    (
        "/etc/bftrainer/bftrainer.toml",
        "The configuration, see bftrainer.toml(5).",
    ),
    (
        "BFTRAINER_CONF",
        "Environment: another configuration file; --config comes first.",
    ),
    (
        "SLURM_CONF",
        "Environment: the site's slurm.conf, as for Slurm's own commands.",
    ),
    (
        "BFT_MUNGE_SOCKET",
        "Environment: munge's socket, before that of slurm.conf.",
    ),
    (
        "RUST_LOG",
        "Environment of bftrainerd: what is logged (error, warn, info, debug).",
    ),
];

const PLUGIN_DESCRIPTION: &str = "The plugin makes sbatch --bftrainer=SPEC submit a trainer, runs \
    the worker agent in place of a tagged batch script, and has each node tell bftrainerd when a \
    job starts or ends there. Its line in plugstack.conf is `optional` and the last one: it \
    returns 0 whatever happens inside it, and must be built for the Slurm that runs.";

/// Where the files are written.
#[derive(Debug, Args)]
pub struct ManualArgs {
    /// A folder, made if need be: man/ and completions/ in it
    folder: PathBuf,
}

/// Writes man/ and completions/ for the two commands.
pub fn write(args: &ManualArgs, command: &Command, daemon: &Command) -> io::Result<()> {
    let man = args.folder.join("man");
    fs::create_dir_all(&man)?;
    clap_mangen::generate_to(command.clone(), &man)?;
    // The daemon's page is one of administration.
    clap_mangen::Man::new(daemon.clone())
        .section("8")
        .generate_to(&man)?;
    append(&man.join("bftrainer.1"))?;
    append(&man.join("bftrainerd.8"))?;
    fs::write(man.join("bftrainer.toml.5"), settings_page())?;
    fs::write(man.join("spank_bftrainer.8"), plugin_page())?;

    let completions = args.folder.join("completions");
    fs::create_dir_all(&completions)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), "bftrainer", &completions)?;
    }
    Ok(())
}

/// What the options don't say.
fn append(page: &Path) -> io::Result<()> {
    let mut roff = Roff::new();
    roff.control("SH", ["FILES AND ENVIRONMENT"]);
    for (name, meaning) in FILES {
        roff.control("TP", []);
        roff.text([bold(*name)]);
        roff.text([roman(*meaning)]);
    }
    see_also(&mut roff);
    let text = fs::read_to_string(page)?;
    fs::write(page, text + &roff.to_roff())
}

fn see_also(roff: &mut Roff) {
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(
        "bftrainer(1), bftrainer.toml(5), bftrainerd(8), spank_bftrainer(8), sbatch(1), slurm.conf(5)",
    )]);
}

fn settings_page() -> String {
    let mut roff = title(
        "bftrainer.toml",
        "5",
        "configuration of bftrainerd and bftrainer",
    );
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(
        "TOML; every setting is optional. All problems of the file are reported at once, each \
         with its line. bftrainerd reads it again on SIGHUP and on bftrainer admin reload.",
    )]);
    table(&mut roff, "SETTINGS", SETTINGS);
    see_also(&mut roff);
    roff.to_roff()
}

fn plugin_page() -> String {
    let mut roff = title(
        "spank_bftrainer",
        "8",
        "Slurm's SPANK plugin for elastic trainers",
    );
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold("optional"),
        roman(" /usr/lib/slurm/spank_bftrainer.so "),
        bold("controller="),
        roman("HOST:PORT [ARGUMENT...]"),
    ]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(PLUGIN_DESCRIPTION)]);
    table(&mut roff, "ARGUMENTS", PLUGIN_ARGUMENTS);
    see_also(&mut roff);
    roff.to_roff()
}

fn title(name: &str, section: &str, what: &str) -> Roff {
    let mut roff = Roff::new();
    let version = concat!("bftrainer ", env!("CARGO_PKG_VERSION"));
    roff.control("TH", [name, section, "", version]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {what}"))]);
    roff
}

fn table(roff: &mut Roff, heading: &str, header: &str) {
    roff.control("SH", [heading]);
    for row in rows(ADMIN_GUIDE, header) {
        roff.control("TP", []);
        roff.text(inlines(&row.name));
        let mut text = inlines(&row.meaning);
        if !row.default.is_empty() {
            text.push(roman(" (default: "));
            text.extend(inlines(&row.default));
            text.push(roman(")"));
        }
        roff.text(text);
    }
}

struct Row {
    name: String,
    meaning: String,
    default: String,
}

/// The rows of every table below the line `header`.
fn rows(text: &str, header: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut lines = text.lines();
    while lines.by_ref().any(|line| line.trim() == header) {
        let body = lines
            .by_ref()
            .skip(1)
            .take_while(|line| line.starts_with('|'));
        rows.extend(body.filter_map(|line| {
            let cells = line.trim_matches(['|', ' ']).split('|');
            let mut cells = cells.map(|cell| cell.trim().to_owned());
            Some(Row {
                name: cells.next()?,
                meaning: cells.next()?,
                default: cells.next().unwrap_or_default(),
            })
        }));
    }
    rows
}

/// Markdown's code is bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts
        .map(|(index, part)| {
            if index % 2 == 1 {
                bold(part)
            } else {
                roman(part)
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_settings_table_lists_each_setting_and_nothing_else() {
        let listed: BTreeSet<String> = rows(ADMIN_GUIDE, SETTINGS)
            .iter()
            .flat_map(|row| row.name.split(',').map(str::to_owned).collect::<Vec<_>>())
            .map(|name| name.trim().trim_matches('`').to_owned())
            .collect();
        let known: BTreeSet<String> = crate::config::ALL_KEYS_FOR_TESTS
            .iter()
            .map(|key| (*key).to_owned())
            .collect();
        assert_eq!(listed, known);
    }

    #[test]
    fn the_arguments_table_lists_each_argument_of_the_plugin_and_nothing_else() {
        let names: Vec<String> = rows(ADMIN_GUIDE, PLUGIN_ARGUMENTS)
            .iter()
            .filter_map(|row| Some(row.name.trim_matches('`').split_once('=')?.0.to_owned()))
            .collect();
        let problem = &bftrainer::plugin_args::Args::parse(["unknown"]).problems[0];
        let (_, expected) = problem.split_once("expected ").unwrap();
        let expected: Vec<&str> = expected
            .split([' ', ','])
            .filter_map(|word| Some(word.split_once('=')?.0))
            .collect();
        assert!(expected.len() > 3, "{problem}");
        assert_eq!(names, expected);
    }

    #[test]
    fn pages_and_completions_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let args = ManualArgs {
            folder: folder.path().to_path_buf(),
        };
        let command = Command::new("bftrainer").subcommand(Command::new("queue"));
        write(&args, &command, &Command::new("bftrainerd")).unwrap();
        for file in [
            "man/bftrainer.1",
            "man/bftrainer-queue.1",
            "man/bftrainerd.8",
            "man/bftrainer.toml.5",
            "man/spank_bftrainer.8",
            "completions/bftrainer.bash",
            "completions/_bftrainer",
            "completions/bftrainer.fish",
        ] {
            assert!(
                folder.path().join(file).metadata().unwrap().len() > 100,
                "{file}"
            );
        }
        let page = fs::read_to_string(folder.path().join("man/bftrainer.toml.5")).unwrap();
        assert!(page.contains("\\fBlease_s\\fR"), "{page}");
    }
}
