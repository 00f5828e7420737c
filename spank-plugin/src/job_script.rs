//! Prolog and epilog, as root on every node of every job: one datagram to the
//! controller, "something changed on this node". No file is touched, nothing of
//! the user's environment is read, no error is told, and nobody waits for it.

use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use bftrainer::hint;

use bftrainer::plugin_args::Args;

/// Longest that a controller given by name may hold up a job. A numeric address
/// costs nothing; a name that the resolver does not answer in this time costs
/// the hint, and the controller sees the change at its next poll.
const LOOKUP_LIMIT: Duration = Duration::from_millis(50);

/// Most addresses of one name that get the datagram (IPv4 and IPv6 of a host).
const MOST_ADDRESSES: usize = 4;

/// Sends the hint for this node.
pub fn hint(args: &Args) {
    let Some(controller) = &args.controller else {
        return;
    };
    let datagram = hint::encode(&node_name());
    for address in addresses(controller) {
        send(address, &datagram);
    }
}

/// Where `controller` is; empty when that can't be told in time.
fn addresses(controller: &str) -> Vec<SocketAddr> {
    if let Ok(address) = controller.parse() {
        return vec![address];
    }
    let (sender, receiver) = mpsc::channel();
    let controller = controller.to_owned();
    // The thread is left behind when it is late; the process ends without it.
    let lookup = move || {
        let found = controller.to_socket_addrs().map(Iterator::collect);
        let _ = sender.send(found.unwrap_or_default());
    };
    if thread::Builder::new().spawn(lookup).is_err() {
        return Vec::new();
    }
    let mut found: Vec<SocketAddr> = receiver.recv_timeout(LOOKUP_LIMIT).unwrap_or_default();
    found.truncate(MOST_ADDRESSES);
    found
}

fn send(address: SocketAddr, datagram: &[u8]) {
    let any = if address.is_ipv4() {
        "0.0.0.0:0"
    } else {
        "[::]:0"
    };
    let Ok(socket) = UdpSocket::bind(any) else {
        return;
    };
    if socket.set_nonblocking(true).is_ok() {
        let _ = socket.send_to(datagram, address);
    }
}

/// Slurm's name of this node: slurmd sets it for prolog and epilog.
fn node_name() -> Vec<u8> {
    if let Some(name) = std::env::var_os("SLURMD_NODENAME") {
        return name.into_encoded_bytes();
    }
    let mut buffer = [0_u8; 256];
    // SAFETY: the buffer has the length that is passed.
    if unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len()) } != 0 {
        return Vec::new();
    }
    let ends = |byte: &u8| *byte == 0 || *byte == b'.';
    let end = buffer.iter().position(ends).unwrap_or(buffer.len());
    buffer[..end].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn listener() -> (UdpSocket, u16) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    }

    fn hint_to(controller: &str) {
        hint(&Args::parse([format!("controller={controller}")]));
    }

    #[test]
    fn one_datagram_reaches_a_numeric_address() {
        let (socket, port) = listener();
        hint_to(&format!("127.0.0.1:{port}"));
        let mut buffer = [0; 512];
        let length = socket.recv(&mut buffer).unwrap();
        assert!(hint::is_hint(&buffer[..length]));
        assert!(length > hint::PREFIX.len(), "the node's name follows");
    }

    #[test]
    fn a_name_is_looked_up() {
        let (socket, port) = listener();
        hint_to(&format!("localhost:{port}"));
        assert!(hint::is_hint(&{
            let mut buffer = [0; 512];
            let length = socket.recv(&mut buffer).unwrap();
            buffer[..length].to_vec()
        }));
    }

    #[test]
    fn a_name_that_does_not_resolve_holds_nobody_up() {
        let start = Instant::now();
        hint_to("no-such-host.invalid:6820");
        assert!(start.elapsed() < Duration::from_secs(1));
    }
}
