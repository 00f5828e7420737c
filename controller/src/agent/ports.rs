//! A free TCP port for a generation's master.

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

/// Lowest port that is tried.
const LOWEST: u16 = 10_000;

/// Where the system's own ephemeral ports begin when it does not say.
const EPHEMERAL_FROM: u16 = 32_768;

/// Ports that are tried at random before the system is asked for any.
const TRIES: u32 = 50;

/// A port on which nothing listens now, outside of the range from which the
/// system serves outgoing connections, so that it stays free until it is used.
/// 0 when there is none.
pub fn free_port() -> u16 {
    let below = ephemeral_from();
    for _ in 0..TRIES {
        let port = LOWEST + super::times::random_u16() % (below - LOWEST);
        if is_free(port) {
            return port;
        }
    }
    TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|listener| listener.local_addr())
        .map_or(0, |address| address.port())
}

fn is_free(port: u16) -> bool {
    let v4 = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
    // A host without IPv6 refuses each address with an error of its own.
    let v6 = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .map_or_else(|e| e.kind() != std::io::ErrorKind::AddrInUse, |_| true);
    v4 && v6
}

/// The first of the system's ephemeral ports, at least 1,000 above [`LOWEST`].
fn ephemeral_from() -> u16 {
    std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .filter(|from| *from >= LOWEST + 1_000)
        .unwrap_or(EPHEMERAL_FROM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_not_offered() {
        let held = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        assert!(!is_free(held.local_addr().unwrap().port()));
        assert!(free_port() >= LOWEST);
    }
}
