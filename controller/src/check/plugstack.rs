//! plugstack.conf as Slurm reads it: plugins in the order of their lines, with
//! includes followed (spank(8), CONFIGURATION).

use std::path::{Path, PathBuf};

/// How deep includes are followed.
const MAX_INCLUDES: u32 = 4;

/// A plugin's line.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The file that holds the line, and the line's number.
    pub place: String,
    /// Whether a failure of the plugin ends what loads it.
    pub required: bool,
    /// The plugin.
    pub plugin: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// The lines of the file at `path`; what can't be read is in the second list,
/// one sentence each.
pub fn read(path: &Path) -> (Vec<Entry>, Vec<String>) {
    let (mut entries, mut problems) = (Vec::new(), Vec::new());
    read_file(path, MAX_INCLUDES, &mut entries, &mut problems);
    (entries, problems)
}

fn read_file(
    path: &Path,
    includes_left: u32,
    entries: &mut Vec<Entry>,
    problems: &mut Vec<String>,
) {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            problems.push(format!("{}: {error}", path.display()));
            return;
        }
    };
    for (index, line) in String::from_utf8_lossy(&bytes).lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace().map(str::to_owned);
        let Some(first) = words.next() else { continue };
        let place = format!("{}:{}", path.display(), index + 1);
        match (first.to_ascii_lowercase().as_str(), words.next()) {
            ("include", Some(pattern)) if includes_left > 0 => {
                for file in included(path, &pattern) {
                    read_file(&file, includes_left - 1, entries, problems);
                }
            }
            (kind @ ("required" | "optional"), Some(plugin)) => entries.push(Entry {
                place,
                required: kind == "required",
                plugin: plugin.into(),
                arguments: words.collect(),
            }),
            _ => problems.push(format!("{place}: expected required, optional or include")),
        }
    }
}

/// The files that an include names, in the order of their names.
fn included(path: &Path, pattern: &str) -> Vec<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    let pattern = folder.join(pattern);
    match glob::glob(&pattern.to_string_lossy()) {
        Ok(files) => files.filter_map(Result::ok).collect(),
        Err(_) => vec![pattern],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn includes_are_followed_in_the_order_of_names() {
        let folder = tempfile::tempdir().unwrap();
        let main = folder.path().join("plugstack.conf");
        let parts = folder.path().join("plugstack.conf.d");
        std::fs::create_dir(&parts).unwrap();
        std::fs::write(
            &main,
            "# ours\ninclude plugstack.conf.d/*.conf\nrequired a.so x=1 y\n",
        )
        .unwrap();
        std::fs::write(parts.join("2.conf"), "optional /lib/two.so\n").unwrap();
        std::fs::write(parts.join("1.conf"), "nonsense\nOptional one.so\n").unwrap();
        let (entries, problems) = read(&main);
        let names: Vec<_> = entries.iter().map(|e| e.plugin.to_str().unwrap()).collect();
        assert_eq!(names, ["one.so", "/lib/two.so", "a.so"]);
        assert_eq!(entries[2].arguments, ["x=1", "y"]);
        assert!(entries[2].required && !entries[1].required);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].ends_with("1.conf:1: expected required, optional or include"));
    }
}
