//! The hint: a datagram from a node's job prolog or epilog, "something changed
//! here". Nothing believes it: it only makes the controller look sooner.

/// Bytes that every hint starts with; the node's name follows.
pub const PREFIX: &[u8] = b"bfth1 ";

/// Longest hint in bytes; longer datagrams are dropped.
pub const MAX_BYTES: usize = 128;

/// The datagram that says something changed on `node`, cut at [`MAX_BYTES`].
pub fn encode(node: &[u8]) -> Vec<u8> {
    let mut datagram = PREFIX.to_vec();
    datagram.extend_from_slice(node);
    datagram.truncate(MAX_BYTES);
    datagram
}

/// Whether `datagram` has a hint's form.
pub fn is_hint(datagram: &[u8]) -> bool {
    datagram.len() <= MAX_BYTES && datagram.starts_with(PREFIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_recognised_and_noise_is_not() {
        assert!(is_hint(&encode(b"n17")));
        assert!(is_hint(&encode(&[b'x'; 4096])));
        assert!(!is_hint(b"GET / HTTP/1.1"));
        assert!(!is_hint(&[b"bfth1 ".as_slice(), &[b'x'; 4096]].concat()));
    }
}
