//! What this host gives the daemon: its user, its address, munge, a clock, a disk.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use dns_lookup::{LookupError, LookupErrorKind};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};

use super::Findings;
use super::Severity::{Error, Note, Warning};
use crate::config::Config;
use crate::munge;
use crate::slurm::Site;
use crate::slurm_conf;

/// Clocks that are further apart get a warning, seconds.
const CLOCKS_APART_S: i64 = 5;

/// Munge believes credentials for this long (munge(7)), so clocks must agree on it, seconds.
const MUNGE_LIFE_S: i64 = 300;

/// Room that the state file may need over the years, bytes.
const ROOM_BYTES: u64 = 100 * 1024 * 1024;

pub(super) fn check(config: &Config, site: &Site, findings: &mut Findings) {
    user(site, findings);
    address(config, site, findings);
    munge(config, findings);
    clock(site, findings);
    state_dir(config, site, findings);
}

/// Whether two `HOST:PORT` mean the same, by name or by address.
pub(super) fn same_address(one: &str, other: &str) -> bool {
    let addresses = |text: &str| text.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    one == other
        || match (addresses(one), addresses(other)) {
            (Ok(ones), Ok(others)) => ones.iter().any(|address| others.contains(address)),
            _ => false,
        }
}

fn user(site: &Site, findings: &mut Findings) {
    let conf = &site.conf;
    if conf.slurm_user_uid == 0 {
        findings.add(
            Error,
            "SlurmUser",
            "root",
            "bftrainerd would run as root, which it need not and must not",
            "SlurmUser=slurm",
        );
        return;
    }
    let own = nix::unistd::Uid::effective().as_raw();
    if own != conf.slurm_user_uid {
        findings.add(
            Note,
            "bftrainer check",
            format!(
                "runs as uid {own}, bftrainerd as SlurmUser ({})",
                conf.slurm_user
            ),
            "what bftrainerd may do is judged by the files' owners and modes",
            format!(
                "to be sure: runuser -u {} -- bftrainer check",
                conf.slurm_user
            ),
        );
    }
}

fn address(config: &Config, site: &Site, findings: &mut Findings) {
    let item = "bftrainer.toml: controller";
    let addresses = match addresses(&config.controller) {
        Ok(addresses) => addresses,
        Err(error) => {
            findings.add(
                Error,
                item,
                format!("\"{}\": {error}", config.controller),
                "bftrainerd can't listen, and nobody finds it",
                "controller = \"HOST:PORT\" with a host that this host's resolver knows",
            );
            findings.last_may_pass(may_pass(error.kind()));
            return;
        }
    };
    let elsewhere = site.nodes.iter().find(|(_, address)| {
        let parsed: Result<IpAddr, _> = address.parse();
        address != "localhost" && parsed.map_or(true, |address| !address.is_loopback())
    });
    if addresses.iter().any(IpAddr::is_unspecified) {
        findings.add(
            Warning,
            item,
            format!("\"{}\"", config.controller),
            "commands and agents read the same setting and can't connect to this address",
            "controller = \"HOST:PORT\" with this host's name in the cluster",
        );
    } else if let Some((node, address)) = elsewhere
        && addresses.iter().all(IpAddr::is_loopback)
    {
        findings.add(
            Warning,
            item,
            format!("\"{}\", but node {node} is at {address}", config.controller),
            "agents on other hosts can't reach the controller",
            "controller = \"HOST:PORT\" with this host's name in the cluster",
        );
    }
}

/// The addresses of the host in `HOST:PORT`.
fn addresses(address: &str) -> Result<Vec<IpAddr>, LookupError> {
    if let Ok(address) = address.parse::<SocketAddr>() {
        return Ok(vec![address.ip()]);
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    Ok(dns_lookup::lookup_host(host)?.collect())
}

/// Whether the fault is the resolver's own, not the name's (getaddrinfo(3)).
fn may_pass(kind: LookupErrorKind) -> bool {
    use LookupErrorKind::{Again, Fail, IO, Memory, System};
    matches!(kind, Again | Fail | Memory | System | IO)
}

fn munge(config: &Config, findings: &mut Findings) {
    let socket = config
        .munge_socket
        .clone()
        .or_else(slurm_conf::munge_socket);
    let payload = b"bftrainer check";
    let result = munge::encode(payload, socket.as_deref())
        .and_then(|credential| munge::decode(&credential, socket.as_deref()));
    let problem = match result {
        Ok(proof) if proof.payload == payload => return,
        Ok(_) => "a credential came back with another content".to_owned(),
        Err(error) => error.to_string(),
    };
    findings.add(
        Error,
        "munge",
        problem,
        "agents and commands can't prove who they are: none is let in",
        "start munged (systemctl start munge), or correct munge_socket in bftrainer.toml",
    );
}

fn clock(site: &Site, findings: &mut Findings) {
    let now_s = jiff::Timestamp::now().as_second();
    let ahead_s = now_s - site.slurmctld_time_s;
    if ahead_s.abs() > CLOCKS_APART_S {
        findings.add(
            if ahead_s.abs() >= MUNGE_LIFE_S {
                Error
            } else {
                Warning
            },
            "clock",
            format!("this host's is {ahead_s} s ahead of slurmctld's"),
            "bftrainerd goes by slurmctld's, but munge refuses what is 300 s apart",
            "synchronise the clocks (chrony, systemd-timesyncd)",
        );
    }
}

fn state_dir(config: &Config, site: &Site, findings: &mut Findings) {
    let path = &config.state_dir;
    let item = "bftrainer.toml: state_dir";
    let user = &site.conf.slurm_user;
    if let Err(problem) = writable(path, site.conf.slurm_user_uid) {
        findings.add(
            Error,
            item,
            format!("{}: {problem}", path.display()),
            "bftrainerd can't keep what it learns and does not start",
            format!("install -d -o {user} -m 755 {}", path.display()),
        );
        return;
    }
    if let Ok(disk) = statvfs(path) {
        let free = disk.blocks_available() * disk.fragment_size();
        if free < ROOM_BYTES {
            findings.add(
                Warning,
                item,
                format!("{}: {} MiB are free", path.display(), free >> 20),
                "when the disk is full, decisions and harvested node-hours are not kept",
                "make room, or set state_dir to another disk",
            );
        }
    }
}

/// Whether the daemon, as `uid`, may write there. Who is another user looks at
/// owner and mode.
fn writable(path: &Path, uid: u32) -> Result<(), String> {
    if nix::unistd::Uid::effective().as_raw() == uid {
        // The daemon makes what is missing.
        let existing = path.ancestors().find(|folder| folder.exists());
        let existing = existing.unwrap_or(path);
        return access(existing, AccessFlags::W_OK | AccessFlags::X_OK)
            .map_err(|error| format!("{}: {}", existing.display(), error.desc()));
    }
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    let mode = metadata.mode();
    let may_write = metadata.uid() == uid && mode & 0o300 == 0o300 || mode & 0o003 == 0o003;
    if !metadata.is_dir() {
        Err("not a directory".to_owned())
    } else if may_write {
        Ok(())
    } else {
        Err(format!(
            "belongs to uid {} with mode {:o}",
            metadata.uid(),
            mode & 0o7777
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_resolver_may_pass_and_a_wrong_name_may_not() {
        for (code, passes) in [
            (libc::EAI_AGAIN, true),
            (libc::EAI_FAIL, true),
            (libc::EAI_MEMORY, true),
            (libc::EAI_SYSTEM, true),
            (libc::EAI_NONAME, false),
            (libc::EAI_NODATA, false),
            (libc::EAI_FAMILY, false),
        ] {
            let error = LookupError::new(code);
            assert_eq!(may_pass(error.kind()), passes, "{error}");
        }
    }

    #[test]
    fn addresses_need_no_resolver() {
        for (text, address) in [("127.0.0.1:7115", "127.0.0.1"), ("[::1]:7115", "::1")] {
            let expected: Vec<IpAddr> = vec![address.parse().unwrap()];
            assert_eq!(addresses(text).unwrap(), expected);
        }
        let local = addresses("localhost:7115").unwrap();
        assert!(local.iter().all(IpAddr::is_loopback), "{local:?}");
    }
}
