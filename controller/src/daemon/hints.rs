//! The port for hints. They all say the same, so that a flood of them may cost next to nothing.

use std::io::ErrorKind;
use std::time::Duration;

use bftrainer::hint;
use tokio::net::UdpSocket;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::sleep;

use super::Input;

/// Between two readings of the socket: what arrives meanwhile waits there or, where there are too
/// many, is dropped by the kernel.
const PAUSE: Duration = Duration::from_millis(100);

/// Datagrams that are read at once.
const MOST_AT_ONCE: usize = 1000;

/// Passes hints on, those that arrive together as one input, for ever.
pub async fn receive(socket: UdpSocket, inputs: UnboundedSender<Input>) {
    loop {
        let read = match socket.readable().await {
            Ok(()) => read_all(&socket),
            Err(error) => Err(error),
        };
        match read {
            Ok(0) => {}
            Ok(hints) => {
                if inputs.send(Input::Hints(hints)).is_err() {
                    return;
                }
            }
            Err(error) => {
                log::warn!("hints: {error}");
                sleep(Duration::from_secs(1)).await;
            }
        }
        sleep(PAUSE).await;
    }
}

/// How many hints are among the datagrams that wait.
fn read_all(socket: &UdpSocket) -> std::io::Result<u64> {
    let mut buffer = [0; hint::MAX_BYTES + 1];
    let mut hints = 0;
    for _ in 0..MOST_AT_ONCE {
        match socket.try_recv(&mut buffer) {
            Ok(length) => hints += u64::from(hint::is_hint(&buffer[..length])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(hints)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(60);

    async fn bound() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").await.unwrap()
    }

    #[tokio::test]
    async fn a_flood_of_hints_is_few_inputs_and_a_lone_one_is_heard_after_it() {
        let (socket, sender) = (bound().await, bound().await);
        sender.connect(socket.local_addr().unwrap()).await.unwrap();
        let (inputs, mut received) = mpsc::unbounded_channel();
        for _ in 0..200 {
            sender.send(&hint::encode(b"n1")).await.unwrap();
            sender.send(b"noise").await.unwrap();
        }
        tokio::spawn(receive(socket, inputs));
        let mut heard = 0;
        while heard < 100 {
            // The kernel may have dropped some, not most: they take less than its buffer.
            match timeout(PATIENCE, received.recv()).await.unwrap() {
                Some(Input::Hints(hints)) => heard += hints,
                other => panic!("{other:?}"),
            }
        }
        assert!(heard <= 200);
        assert!(received.len() <= 1, "all were read at once");
        sender.send(b"noise").await.unwrap();
        sender.send(&hint::encode(b"n2")).await.unwrap();
        let lone = timeout(PATIENCE, received.recv()).await.unwrap();
        assert!(matches!(lone, Some(Input::Hints(_))), "{lone:?}");
    }
}
